"""HIST: batch size (Yuan et al., MLRC 2022, Figure 2a).

The learning rates are the same for all sizes.

    dml-jax study --study=configs/studies/hist_batch_size.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cars", "omniglot")


def get_study(variant: str = "cars") -> Study:
    config = "configs/cars_hist.py:retuned" if variant == "cars" else f"configs/{variant}_hist.py"
    study = Study(
        title=f"HIST, batch size: {variant}",
        source="Reproduction, Figure 2a: consistent from 32 on, clearly worse with 8 and 16; values are not printed.",
        rows=grid(config, {"data.batch_size": (8, 16, 32, 64, 128)}),
    )
    return published.beside_rows(f"hist_batch_size:{variant}", study)
