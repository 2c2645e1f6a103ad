"""HIST: distances between embeddings and class distributions (Yuan et al., MLRC 2022, Table 4).

The Manhattan distance is not in the table.

    dml-jax study --study=configs/studies/hist_distances.py
    dml-jax study --study=configs/studies/hist_distances.py:omniglot
"""

from dml_jax.studies.definition import Study, grid, percent

VARIANTS = ("cars", "omniglot")
TABLE_4 = {
    "euclidean": percent(r1=87.2, r2=92.5, r4=95.4),
    "cosine": percent(r1=88.7, r2=93.6, r4=96.1),
    "mahalanobis": percent(r1=90.2, r2=94.5, r4=96.8),
}


def get_study(variant: str = "cars") -> Study:
    config = "configs/cars_hist.py:retuned" if variant == "cars" else f"configs/{variant}_hist.py"
    return Study(
        title=f"HIST, distances: {variant}",
        source="Reproduction, Table 4, which calls the differences insignificant.",
        rows=grid(
            config,
            {"method.distance": ("euclidean", "cosine", "manhattan", "mahalanobis")},
            TABLE_4 if variant == "cars" else None,
            source="reproduction",
        ),
    )
