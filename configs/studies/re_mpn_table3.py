"""MPN at test time beside its reproduction ([Re] Learning Intra-Batch Connections, Table 3).

Variants: the data sets.

    dml-jax study --study=configs/studies/re_mpn_table3.py
    dml-jax study --study=configs/studies/re_mpn_table3.py:cars
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars")


def get_study(variant: str = "cub") -> Study:
    study = Study(
        title=f"MPN at test time and its reproduction: {variant}",
        source="Reproduction, Table 3: message passing at test time improves NMI, while R@2 to R@8 are always lower.",
        rows=(Row("MPN", f"configs/{variant}_mpn.py:refined", reported={"paper": {}}),),
    )
    return published.beside_rows(f"re_mpn_table3:{variant}", study)
