"""DiVA on In-Shop Clothes: ResNet-50, four embeddings of 128 (the method of Milbich, Roth et al., ECCV 2020).

No results or settings are published for this data set, which the authors' code does not support. The settings are those
of Stanford Online Products, which also has thousands of classes with few images each.

Batch 112, random resized crops of 224 pixels, Adam, 150 epochs.

    python -m dml_jax.main --config=configs/inshop_diva.py          clean protocol
    python -m dml_jax.main --config=configs/inshop_diva.py:paper    the authors' protocol on the other data sets

Cost: not published.
"""

from ml_collections import ConfigDict

from configs.recipes import diva
from configs.recipes.published import variants

REPORTED: dict[str, tuple[float | None, ...]] = {"": ()}
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return diva.recipe(
        "inshop", variant, REPORTED, rho=150.0, alpha=0.2, milestone=70,
        gamma=0.3, epochs=150, queue_batches=70, auxiliary_weight=1.0,
    )  # fmt: skip
