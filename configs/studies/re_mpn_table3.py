"""MPN at test time beside its reproduction ([Re] Learning Intra-Batch Connections, Table 3).

Variants: the data sets.

    dml-jax study --study=configs/studies/re_mpn_table3.py
    dml-jax study --study=configs/studies/re_mpn_table3.py:cars
"""

from dml_jax.studies.definition import Row, Study, percent

VARIANTS = ("cub", "cars")
KEYS = ("recall@1", "recall@2", "recall@4", "recall@8", "nmi")
TABLE_3 = {  # reproduction without and with MPN at test time; authors' weights without and with; paper with: R@1, NMI
    "cub": (
        (70.1, 79.9, 87.5, 92.8, 72.6), (69.8, 79.1, 86.3, 91.3, 74.6),
        (70.3, 80.3, 87.6, 92.7, 73.9), (70.7, 80.1, 86.8, 91.3, 74.6), (70.8, 74.5),
    ),
    "cars": (
        (87.3, 92.3, 95.1, 97.0, 70.0), (86.9, 90.5, 93.5, 95.6, 70.9),
        (88.1, 92.7, 95.6, 97.5, 70.9), (88.4, 92.3, 95.0, 96.7, 74.0), (88.6, 76.2),
    ),
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    *full, paper = TABLE_3[variant]
    ours, ours_after, theirs, theirs_after = (
        {key: round(v / 100, 4) for key, v in zip(KEYS, values, strict=True)} for values in full
    )
    after = {"paper": percent(r1=paper[0], nmi=paper[1]), "authors' weights": theirs_after, "reproduction": ours_after}
    return Study(
        title=f"MPN at test time and its reproduction: {variant}",
        source="Reproduction, Table 3: message passing at test time improves NMI, while R@2 to R@8 are always lower.",
        rows=(
            Row(
                "MPN", f"configs/{variant}_mpn.py:refined",
                reported={"paper": {}, "authors' weights": theirs, "reproduction": ours},
                refined={"reciprocal": after},
            ),
        ),
    )  # fmt: skip
