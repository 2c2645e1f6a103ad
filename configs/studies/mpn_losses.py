"""MPN: its two losses, and message passing at test time (Seidenschwarz et al., ICML 2021, Table 3).

On Cars196 the authors evaluate another network after message passing, with one layer.

    dml-jax study --study=configs/studies/mpn_losses.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "omniglot")


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_mpn.py"
    rows: tuple[Row, ...] = (
        Row("auxiliary loss", file, {"method.losses": "auxiliary"}),
        Row("MPN loss", file, {"method.losses": "mpn"}),
    )
    match variant:
        case "cub":
            rows += (Row("both losses", f"{file}:refined"),)
        case "cars":
            rows += (Row("both losses, one layer", f"{file}:refined", reported={"paper": {}}), Row("both losses", file))
        case _:
            rows += (Row("both losses", file, {"evaluation.refine": ("reciprocal",)}),)
    study = Study(
        title=f"MPN, losses: {variant}",
        source="Paper, Table 3: without the MPN, R@1 is 3 to 4 lower; message passing at test time adds half a point.",
        rows=rows,
    )
    return published.beside_rows(f"mpn_losses:{variant}", study)
