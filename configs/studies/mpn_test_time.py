"""MPN: batches at test time (Seidenschwarz et al., ICML 2021, Table 8, upper part).

A network is evaluated after message passing in batches of eight kinds. On Cars196, the network that the authors
evaluate with reciprocal neighbours has one layer and four heads; that of their other results has two layers and eight
heads. They do not state which of the two gave the other rows.

    dml-jax study --study=configs/studies/mpn_test_time.py
"""

from typing import Any

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "omniglot")
KINDS = ("kmeans", "ward", "spectral", "birch", "dbscan", "optics", "neighbors", "reciprocal")


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_mpn.py"
    overrides: dict[str, Any] = {"evaluation.refine": KINDS}
    if variant == "omniglot":
        overrides |= {"evaluation.refine_clusters": 318, "evaluation.refine_eps": 0.5}
    rows: tuple[Row, ...] = (Row("backbone", f"{file}:refined" if variant == "cub" else file, overrides),)
    if variant == "cars":
        rows += (Row("backbone, one layer", f"{file}:refined", overrides),)
    study = Study(
        title=f"MPN, batches at test time: {variant}",
        source="Paper, Table 8: only reciprocal neighbours improve on the backbone's embeddings.",
        rows=rows,
    )
    return published.beside_rows(f"mpn_test_time:{variant}", study)
