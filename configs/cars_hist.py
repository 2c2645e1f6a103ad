"""HIST on Cars196: ResNet-50 or BN-Inception, 512-d (Lim, Yun, Park, Choi, CVPR 2022).

                                  ResNet-50                     BN-Inception
                                  R@1    R@2    R@4    NMI      R@1    R@2    R@4    NMI
    paper, best run               89.8   94.0   96.5   75.5     87.6   92.8   95.5   73.2
    paper, mean of runs           89.6   93.9   96.4
    reproduction                  89.8   94.4   96.6   75.4     87.6   92.8   95.7   73.1
    reproduction, retuned         90.2   94.5   96.8   75.8     88.1   92.7   95.7   73.4

All rows are from the epoch that is best on the test set; results of a fixed schedule were not published. The
reproduction is by Yuan et al., MLRC 2022. For the retuned alpha with BN-Inception it prints 0.9 in Table 2 and 1.0 in
Table 8; the latter is used here.

    python -m dml_jax.main --config=configs/cars_hist.py          clean protocol
    python -m dml_jax.main --config=configs/cars_hist.py:paper    the authors' protocol

Cost: 0.6 hours on a V100, 0.9 with BN-Inception (the reproduction). For the variants see configs/recipes/hist.py.
"""

from ml_collections import ConfigDict

from configs.recipes import hist
from configs.recipes.published import variants, without_protocol

REPORTED = {  # R@1, R@2, R@4, R@8, NMI: the paper's; retuned: the reproduction's
    "": (89.8, 94.0, 96.5, None, 75.5),
    "retuned": (90.2, 94.5, 96.8, None, 75.8),
    "bn_inception": (87.6, 92.8, 95.5, None, 73.2),
    "bn_inception-retuned": (88.1, 92.7, 95.7, None, 73.4),
}
VARIANTS = variants(REPORTED)

VALUES = {  # tau, alpha, lambda_s
    "": (32.0, 0.9, 1.0),
    "retuned": (32.0, 0.9, 0.8),
    "bn_inception": (24.0, 0.9, 1.0),
    "bn_inception-retuned": (22.0, 1.0, 1.5),
}


def get_config(variant: str = "") -> ConfigDict:
    tau, alpha, lambda_s = VALUES[without_protocol(variant)]
    if "bn_inception" in variant:
        return hist.recipe(
            "cars", variant, REPORTED, tau=tau, alpha=alpha, lambda_s=lambda_s,
            learning_rate=1e-4, distributions=1e-1, hgnn=5e-4, weight_decay=5e-5, epochs=60, halve_every=10,
        )  # fmt: skip
    return hist.recipe(
        "cars", variant, REPORTED, tau=tau, alpha=alpha, lambda_s=lambda_s,
        learning_rate=1e-4, distributions=1e-1, hgnn=1e-3, weight_decay=1e-4, epochs=50, halve_every=10,
    )  # fmt: skip
