"""DiVA: what replaces DaNCE, and an ensemble (Milbich, Roth et al., ECCV 2020, Figure 4).

Variants: the data sets.

    dml-jax study --study=configs/studies/diva_self_supervision.py
    dml-jax study --study=configs/studies/diva_self_supervision.py:omniglot
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "omniglot")
ROWS = {
    "baseline": "discriminative", "DaNCE": "dance", "NCE": "nce", "instance discrimination, memory": "instance",
    "instance discrimination, views": "spread", "RotNet": "rotnet", "DeepCluster": "deepcluster",
    "discriminative ensemble": "ensemble", "DiVA": "all",
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    prefix = f"configs/{variant}_diva.py:" + ("" if variant == "omniglot" else "bn_inception-")
    return Study(
        title=f"DiVA, the bars of Figure 4: {variant}",
        source="Paper, Figure 4: DaNCE gains most, NCE is below the baseline; heights are not printed.",
        rows=tuple(Row(name, f"{prefix}{key}") for name, key in ROWS.items()),
    )
