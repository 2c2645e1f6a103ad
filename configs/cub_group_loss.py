"""The Group Loss on CUB-200-2011: BN-Inception, 1,024-d (Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé, ECCV 2020).

             R@1    R@2    R@4    R@8    NMI
    paper    65.5   77.0   85.0   91.3   69.0

The row is quoted from Seidenschwarz et al. (ICML 2021), Table 1. In the authors' code it is the epoch that is best on
the test set; results of a fixed schedule were not published.

Batch 54, random resized crops of 227 pixels, RAdam, 70 epochs.

    python -m dml_jax.main --config=configs/cub_group_loss.py          clean protocol
    python -m dml_jax.main --config=configs/cub_group_loss.py:paper    the authors' protocol

Cost: not published. For the sources of the settings see configs/recipes/group_loss.py.
"""

from ml_collections import ConfigDict

from configs.recipes import group_loss
from configs.recipes.published import Reported, variants

REPORTED: Reported = {"": (65.5, 77.0, 85.0, 91.3, 69.0)}  # R@1, R@2, R@4, R@8, NMI
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return group_loss.recipe(
        "cub", variant, REPORTED, learning_rate=0.0001563663718906821, weight_decay=6.059722614369727e-06,
        classes=6, images=9, anchors=2, temperature=24.0,
    )  # fmt: skip
