"""MPN at test time and its reproduction ([Re] Learning Intra-Batch Connections, Table 3).

On Cars196 the authors' weights evaluated here are of a network with one layer and four heads; that of Table 2, and of
the reproduction (Table 1), has two layers and eight heads.

    dml-jax study --study=configs/studies/re_mpn_table3.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars")


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_mpn.py"
    rows: tuple[Row, ...] = (Row("MPN", f"{file}:refined"),)
    if variant == "cars":
        rows = (
            Row("MPN", file, {"evaluation.refine": ("reciprocal",)}),
            Row("MPN, one layer", f"{file}:refined", reported={"paper": {}}),
        )
    study = Study(
        title=f"MPN at test time and its reproduction: {variant}",
        source="Reproduction, Table 3: message passing at test time improves NMI, while R@2 to R@8 are always lower.",
        rows=rows,
    )
    return published.beside_rows(f"re_mpn_table3:{variant}", study)
