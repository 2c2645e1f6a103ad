"""HIST on In-Shop Clothes: ResNet-50, 512-d (the method of Lim, Yun, Park, Choi, CVPR 2022).

Nobody has published numbers or values for this set, though the authors' code reads it. The values are those of Stanford
Online Products, which also has thousands of classes of a few images. For orientation: Proxy-Anchor, on whose code
theirs is built, gives R@1 92.1 with the same backbone and 512 dimensions (as quoted by Seidenschwarz et al. 2021,
Table 2).

    python -m dml_jax.main --config=configs/inshop_hist.py          clean protocol
    python -m dml_jax.main --config=configs/inshop_hist.py:paper    the authors', on the other sets

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
