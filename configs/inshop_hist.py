"""HIST on In-Shop Clothes: ResNet-50, 512-d (the method of Lim, Yun, Park, Choi, CVPR 2022).

No results or settings are published for this data set, although the authors' code supports it. The settings are those
of Stanford Online Products, which also has thousands of classes with few images each. For orientation: Proxy-Anchor, on
which the authors' code is based, has R@1 92.1 with the same backbone and 512 dimensions (as quoted by Seidenschwarz et
al. 2021, Table 2).

Batch 32, random resized crops of 224 pixels, Adam, 60 epochs after 1 of warm-up.

    python -m dml_jax.main --config=configs/inshop_hist.py          clean protocol
    python -m dml_jax.main --config=configs/inshop_hist.py:paper    the authors' protocol on the other data sets

Cost: not published.
"""

from ml_collections import ConfigDict

from configs.recipes import hist
from configs.recipes.published import variants

REPORTED: dict[str, tuple[float | None, ...]] = {"": ()}
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return hist.recipe(
        "inshop", variant, REPORTED, tau=16.0, alpha=2.0, lambda_s=1.0, freeze_bn=False,
        learning_rate=1e-4, distributions=1e-2, hgnn=1e-3, weight_decay=1e-4, epochs=60, halve_every=10,
    )  # fmt: skip
