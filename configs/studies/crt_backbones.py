"""CRT: backbones, with and without it (Kan et al., NeurIPS 2022, Table 5).

One variant per data set.

    dml-jax study --study=configs/studies/crt_backbones.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "inshop")
BACKBONES = {
    "GoogLeNet": "googlenet", "BN-Inception": "bn_inception", "ResNet-50": "resnet50", "DeiT-S": "deit",
    "MiT-B1": "mit_b1",
}  # fmt: skip
MS_ALONE = {"method.transform": "average", "method.lambda1": (1.0, 0.0), "method.lambda2": 0.0}


def get_study(variant: str = "cub") -> Study:
    rows: list[Row] = []
    for name, key in BACKBONES.items():
        file = f"configs/{variant}_crt.py:{key}"
        rows += [Row(f"{name}, MS", file, MS_ALONE), Row(f"{name}, MS + CRT", file)]
    study = Study(
        title=f"CRT, backbones: {variant}",
        source="Paper, Table 5: CRT improves the multi-similarity loss (MS) with every backbone.",
        rows=tuple(rows),
    )
    return published.beside_rows(f"crt_backbones:{variant}", study)
