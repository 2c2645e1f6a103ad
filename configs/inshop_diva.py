"""DiVA on In-Shop Clothes: ResNet-50, four embeddings of 128 (the method of Milbich, Roth et al., ECCV 2020).

Nobody has published numbers or values for this set; the authors' code does not run on it. The values are those of
Stanford Online Products, which also has thousands of classes of a few images.

    python -m dml_jax.main --config=configs/inshop_diva.py          clean protocol
    python -m dml_jax.main --config=configs/inshop_diva.py:paper    the authors', on the other sets

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
        gamma=0.3, epochs=150, queue_batches=70, emphasis=1.0,
    )  # fmt: skip
