"""HIST on the data sets other than Cars196: what differs from `cars_hist.py`.

No settings are published for In-Shop, which the authors' code supports: they are those of SOP,
which also has thousands of classes with few images each. Cost on a V100 (the reproduction): 1.7
hours on CUB, 0.6 on Cars196, 7.2 on SOP; with BN-Inception 1.1, 0.9 and 9.3.
"""

from typing import Any

from configs import base, cars_hist
from configs.cars_hist import groups
from configs.recipes import large_batch
from dml_jax.backbones import bn_inception


def loss(tau: float, alpha: float, lambda_s: float = 1.0) -> dict[str, float]:
    return {"method.tau": tau, "method.alpha": alpha, "method.lambda_s": lambda_s}


SOP = {
    **loss(16.0, 2.0),
    "backbone.freeze_bn": False,
    "train.groups": groups(1e-4, 1e-4, distributions=1e-2, hgnn=1e-3),
    "train.epochs": 60,
}
CUB = {
    **loss(32.0, 1.1),
    "train.groups": groups(1.2e-4, 5e-5, distributions=1e-1, hgnn=6e-4),
    "train.epochs": 40,
    "train.period": 5,
}
DIFFERENCES: dict[str, dict[str, Any]] = {"cub": CUB, "sop": SOP, "inshop": SOP}
BN_INCEPTION: dict[str, dict[str, Any]] = {
    "cub": {
        "backbone": bn_inception.Config(pretrained="weights/bn_inception", freeze_bn=True),
        "train.groups": groups(1e-4, 1e-4, distributions=5e-2, hgnn=5e-4),
        "train.optimizer": "adamw",
        "train.epochs": 30,
    },
    "sop": {
        "backbone": bn_inception.Config(pretrained="weights/bn_inception", bn_momentum=0.9),
        "train.optimizer": "adamw",
    },
}
VARIANTS: dict[str, base.Variants] = {
    "cub": {
        "retuned": loss(24.0, 1.15),
        "bn_inception": {**BN_INCEPTION["cub"], **loss(16.0, 1.0)},
        "bn_inception-retuned": {**BN_INCEPTION["cub"], **loss(20.0, 0.95, 1.2)},
    },
    "sop": {
        "retuned": loss(20.0, 2.1, 0.5),
        "bn_inception": {**BN_INCEPTION["sop"], **loss(16.0, 1.6)},
        "bn_inception-retuned": {**BN_INCEPTION["sop"], **loss(12.0, 1.55, 1.5)},
        **large_batch.variants(32, per_device=64),
    },
    "inshop": {},
}


def on(dataset: str) -> base.Contents:
    """The contents of the file of a data set."""
    protocol = base.PAPER_PROTOCOL if dataset == "inshop" else cars_hist.PAPER_PROTOCOL
    return base.on(
        dataset,
        protocol=protocol,
        variants=VARIANTS[dataset],
        differences=DIFFERENCES[dataset],
        **cars_hist.SECTIONS,
    )
