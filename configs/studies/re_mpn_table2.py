"""MPN and its reproduction ([Re] Learning Intra-Batch Connections, Table 2).

One table per data set with the paper's numbers, the authors' weights re-evaluated, and the reproduction's. Variants: a
single data set.

    dml-jax study --study=configs/studies/re_mpn_table2.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

DATA = ("cub", "cars", "sop", "inshop")
VARIANTS = ("all", *DATA)


def get_study(variant: str = "all") -> Study:
    chosen = DATA if variant == "all" else (variant,)
    study = Study(
        title=f"MPN and its reproduction: {variant}",
        source="Reproduction, Table 2: R@1 within one point of the paper; NMI on Cars196 is 4.8 lower, 3.9 with the "
        "authors' weights.",
        rows=tuple(Row(f"MPN on {data}", f"configs/{data}_mpn.py") for data in chosen),
    )
    return published.beside_rows("re_mpn_table2", study)
