"""HIST: sizes of the embedding and of the hypergraph network (Yuan et al., MLRC 2022, Figure 3a).

One variant per data set.

    dml-jax study --study=configs/studies/hist_sizes.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cars", "omniglot")


def get_study(variant: str = "cars") -> Study:
    full = variant == "cars"
    sizes = (256, 512, 1024) if full else (32, 64, 128)
    study = Study(
        title=f"HIST, sizes of embedding and hypergraph network: {variant}",
        source="Reproduction, Figure 3a: best if both are 512 or both 1,024; worst if both are 256.",
        rows=grid(
            "configs/cars_hist.py:retuned" if full else f"configs/{variant}_hist.py",
            {"method.embedding_dim": sizes, "method.hidden_dim": sizes},
        ),
    )
    return published.beside_rows(f"hist_sizes:{variant}", study)
