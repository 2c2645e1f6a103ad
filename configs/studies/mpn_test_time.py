"""MPN: batches at test time (Seidenschwarz et al., ICML 2021, Table 8, upper part).

One network is evaluated after message passing in batches of eight kinds. Variants: the data sets.

    dml-jax study --study=configs/studies/mpn_test_time.py
    dml-jax study --study=configs/studies/mpn_test_time.py:omniglot
"""

from typing import Any

from dml_jax.studies.definition import Row, Study, percent

VARIANTS = ("cub", "cars", "omniglot")
TABLE_8 = {  # R@1, NMI on CUB and Cars196
    "kmeans": (66.1, 69.6, 85.1, 70.5), "ward": (67.9, 68.8, 86.6, 69.5), "spectral": (63.1, 69.6, 85.1, 69.2),
    "birch": (65.5, 69.5, 86.1, 70.0), "dbscan": (65.7, 72.0, 85.0, 70.3), "optics": (66.5, 71.1, 85.4, 69.6),
    "neighbors": (62.1, 69.2, 84.8, 70.2), "reciprocal": (70.8, 74.5, 88.6, 76.2),
}  # fmt: skip
BACKBONE = {"cub": percent(r1=70.3, nmi=74.0), "cars": percent(r1=88.1, nmi=74.8)}


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_mpn.py:refined"
    overrides: dict[str, Any] = {"evaluation.refine": tuple(TABLE_8)}
    reported, refined = {}, {}
    if variant == "omniglot":
        file = "configs/omniglot_mpn.py"
        overrides |= {"evaluation.refine_clusters": 318, "evaluation.refine_eps": 0.5}
    else:
        first = {"cub": 0, "cars": 2}[variant]
        reported = {"paper": BACKBONE[variant]}
        refined = {kind: {"paper": percent(r1=row[first], nmi=row[first + 1])} for kind, row in TABLE_8.items()}
    return Study(
        title=f"MPN, batches at test time: {variant}",
        source="Paper, Table 8: only reciprocal neighbours improve on the backbone's embeddings.",
        rows=(Row("backbone", file, overrides, reported, refined),),
    )
