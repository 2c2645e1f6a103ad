"""DiVA: both backbones, margin and triplet loss (Milbich, Roth et al., ECCV 2020, Table 2).

Variants: the data sets.

    dml-jax study --study=configs/studies/diva_backbones.py
    dml-jax study --study=configs/studies/diva_backbones.py:sop
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop")
ROWS = {
    "BN-Inception, triplet loss": ":bn_inception-triplet", "BN-Inception": ":bn_inception",
    "ResNet-50, triplet loss": ":triplet", "ResNet-50": "",
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    return Study(
        title=f"DiVA, backbones and losses: {variant}",
        source="Paper, Table 2. The reported numbers are also the best over several weights of the embeddings.",
        rows=tuple(Row(name, f"configs/{variant}_diva.py{suffix}") for name, suffix in ROWS.items()),
    )
