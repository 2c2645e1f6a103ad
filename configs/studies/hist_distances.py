"""HIST: distances between embeddings and class distributions (Yuan et al., MLRC 2022, Table 4).

The Manhattan distance is not in the table.

    dml-jax study --study=configs/studies/hist_distances.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cars", "omniglot")


def get_study(variant: str = "cars") -> Study:
    config = "configs/cars_hist.py:retuned" if variant == "cars" else f"configs/{variant}_hist.py"
    study = Study(
        title=f"HIST, distances: {variant}",
        source="Reproduction, Table 4, which calls the differences insignificant.",
        rows=grid(config, {"method.distance": ("euclidean", "cosine", "manhattan", "mahalanobis")}),
    )
    return published.beside_rows(f"hist_distances:{variant}", study)
