"""HIST: both backbones, with published and retuned values (Yuan et al., MLRC 2022, Table 3).

One variant per data set.

    dml-jax study --study=configs/studies/hist_backbones.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop")


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_hist.py"
    study = Study(
        title=f"HIST, backbones and retuned values: {variant}",
        source="Reproduction, Table 3; only the reproduction retuned the values.",
        rows=(
            Row("BN-Inception", f"{file}:bn_inception"),
            Row("BN-Inception, retuned", f"{file}:bn_inception-retuned"),
            Row("ResNet-50, retuned", f"{file}:retuned"),
            Row("ResNet-50", file),
        ),
    )
    return published.beside_rows(f"hist_backbones:{variant}", study)
