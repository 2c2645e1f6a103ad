"""CRT: backbones, with and without it (Kan et al., NeurIPS 2022, Table 5).

Variants: the data sets.

    dml-jax study --study=configs/studies/crt_backbones.py
    dml-jax study --study=configs/studies/crt_backbones.py:sop
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "inshop")
BACKBONES = {
    "GoogLeNet": "googlenet", "BN-Inception": "bn_inception", "ResNet-50": "resnet50", "DeiT-S": "deit",
    "MiT-B1": "mit_b1",
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    rows = []
    for name, key in BACKBONES.items():
        rows += [Row(f"{name}, MS", f"configs/{variant}_crt.py:{key}-ms")]
        rows += [Row(f"{name}, MS + CRT", f"configs/{variant}_crt.py:{key}")]
    return Study(
        title=f"CRT, backbones: {variant}",
        source="Paper, Table 5: CRT improves the multi-similarity loss (MS) with every backbone.",
        rows=tuple(rows),
    )
