"""HIST: batch size (Yuan et al., MLRC 2022, Figure 2a).

The learning rates are the same for all sizes.

    dml-jax study --study=configs/studies/hist_batch_size.py
    dml-jax study --study=configs/studies/hist_batch_size.py:omniglot
"""

from dml_jax.studies.definition import Study, grid, percent

RETUNED = percent(r1=90.2, r2=94.5, r4=96.8, nmi=75.8)  # with the values of `retuned`
VARIANTS = ("cars", "omniglot")


def get_study(variant: str = "cars") -> Study:
    config = "configs/cars_hist.py:retuned" if variant == "cars" else f"configs/{variant}_hist.py"
    return Study(
        title=f"HIST, batch size: {variant}",
        source="Reproduction, Figure 2a: consistent from 32 on, clearly worse with 8 and 16; values are not printed.",
        rows=grid(
            config,
            {"data.batch_size": (8, 16, 32, 64, 128)},
            {32: RETUNED} if variant == "cars" else None,
            source="reproduction",
        ),
    )
