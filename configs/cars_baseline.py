"""Losses from the literature on Cars196: ResNet-50, 512-d or 128-d.

    python -m dml_jax.main --config=configs/cars_baseline.py:proxy_anchor
    python -m dml_jax.main --config=configs/cars_baseline.py:proxy_anchor-lite0

Published: R@1 84.2 (normalised softmax), 87.7 (Proxy-Anchor), 86.5 (ProxyNCA++), 79.6 (margin,
128-d), 79.92 (multi-similarity, 128-d, 227 x 227 pixels). Cost: not published. No paper has the
variant `proxy_anchor-lite0` (`configs/recipes/cars_lite0.py`), which takes hours on two CPU cores.
"""

from ml_collections import ConfigDict

from configs.recipes import baseline, cars_lite0

PAPER_PROTOCOL = baseline.base.PAPER_PROTOCOL
LITE0 = "proxy_anchor-lite0"
VARIANTS = (*baseline.VARIANTS, LITE0)


def get_config(variant: str = "") -> ConfigDict:
    overrides = {LITE0: cars_lite0.OVERRIDES}
    return baseline.config("cars", variant, overrides)
