"""HIST: both backbones, with published and retuned values (Yuan et al., MLRC 2022, Table 3).

Variants: the data sets.

    python -m dml_jax.study --study=configs/studies/hist_backbones.py
    python -m dml_jax.study --study=configs/studies/hist_backbones.py:sop
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop")
KEYS = {"sop": ("recall@1", "recall@10", "recall@100", "nmi")}
REPRODUCED = {  # R@1, R@2, R@4, NMI; on SOP R@1, R@10, R@100, NMI
    "cub": ((70.1, 79.7, 87.4, 72.9), (68.7, 78.3, 86.2, 70.3)),
    "cars": ((89.8, 94.4, 96.6, 75.4), (87.6, 92.8, 95.7, 73.1)),
    "sop": ((80.7, 91.2, 96.4, 91.9), (77.4, 89.6, 95.4, 89.9)),
}


def get_study(variant: str = "cub") -> Study:
    keys = KEYS.get(variant, ("recall@1", "recall@2", "recall@4", "nmi"))
    resnet, inception = (
        {"reproduction": {key: round(value / 100, 4) for key, value in zip(keys, values, strict=True)}}
        for values in REPRODUCED[variant]
    )
    file = f"configs/{variant}_hist.py"
    return Study(
        title=f"HIST, backbones and retuned values: {variant}",
        source="Reproduction, Table 3. The numbers of retuned rows are the reproduction's, the others the paper's.",
        rows=(
            Row("BN-Inception", f"{file}:bn_inception", reported=inception),
            Row("BN-Inception, retuned", f"{file}:bn_inception-retuned"),
            Row("ResNet-50, retuned", f"{file}:retuned"),
            Row("ResNet-50", file, reported=resnet),
        ),
    )
