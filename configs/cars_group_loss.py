"""The Group Loss on Cars196: BN-Inception, 1,024-d (Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé, ECCV 2020).

             R@1    R@2    R@4    R@8    NMI
    paper    85.6   91.2   94.9   97.0   72.7

The row is quoted from Seidenschwarz et al. (ICML 2021), Table 1. In the authors' code it is the epoch that is best on
the test set; results of a fixed schedule were not published.

Batch 35, random resized crops of 227 pixels, RAdam, 70 epochs.

    python -m dml_jax.main --config=configs/cars_group_loss.py          clean protocol
    python -m dml_jax.main --config=configs/cars_group_loss.py:paper    the authors' protocol

Cost: not published. For the sources of the settings see configs/recipes/group_loss.py.
"""

from ml_collections import ConfigDict

from configs.recipes import group_loss
from configs.recipes.published import Reported, variants

REPORTED: Reported = {"": (85.6, 91.2, 94.9, 97.0, 72.7)}  # R@1, R@2, R@4, R@8, NMI
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return group_loss.recipe(
        "cars", variant, REPORTED, learning_rate=0.0002, weight_decay=4.863656728256105e-07,
        classes=5, images=7, anchors=3, temperature=79.0,
    )  # fmt: skip
