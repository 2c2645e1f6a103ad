"""DiVA: both backbones, margin and triplet loss (Milbich, Roth et al., ECCV 2020, Table 2).

One variant per data set.

    dml-jax study --study=configs/studies/diva_backbones.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop")
ROWS = {
    "BN-Inception, triplet loss": ":bn_inception-triplet", "BN-Inception": ":bn_inception",
    "ResNet-50, triplet loss": ":triplet", "ResNet-50": "",
}  # fmt: skip
ALONE = {  # one embedding of 512 dimensions
    "method.tasks": ("discriminative",), "method.directions": (), "method.embedding_dim": 512,
    "method.ensemble": (1.0, 1.0, 1.0, 1.0),
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    rows = (Row(name, f"configs/{variant}_diva.py{suffix}") for name, suffix in ROWS.items())
    study = Study(
        title=f"DiVA, backbones and losses: {variant}",
        source="Paper, Table 2; with `--protocol=paper`, as there, the best of several weightings of the embeddings.",
        rows=(Row("ResNet-50, margin loss alone", f"configs/{variant}_diva.py", ALONE), *rows),
    )
    return published.beside_rows(f"diva_backbones:{variant}", study)
