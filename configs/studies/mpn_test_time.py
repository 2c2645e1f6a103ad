"""MPN: batches at test time (Seidenschwarz et al., ICML 2021, Table 8, upper part).

One network is evaluated after message passing in batches of eight kinds. Variants: the data sets.

    dml-jax study --study=configs/studies/mpn_test_time.py
    dml-jax study --study=configs/studies/mpn_test_time.py:omniglot
"""

from typing import Any

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "omniglot")
KINDS = ("kmeans", "ward", "spectral", "birch", "dbscan", "optics", "neighbors", "reciprocal")


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_mpn.py:refined"
    overrides: dict[str, Any] = {"evaluation.refine": KINDS}
    if variant == "omniglot":
        file = "configs/omniglot_mpn.py"
        overrides |= {"evaluation.refine_clusters": 318, "evaluation.refine_eps": 0.5}
    study = Study(
        title=f"MPN, batches at test time: {variant}",
        source="Paper, Table 8: only reciprocal neighbours improve on the backbone's embeddings.",
        rows=(Row("backbone", file, overrides),),
    )
    return published.beside_rows(f"mpn_test_time:{variant}", study)
