"""Losses from the literature on Cars196: ResNet-50, 512-d or 128-d.

Published: R@1 84.2 (normalised softmax), 87.7 (Proxy-Anchor), 86.5 (ProxyNCA++), 79.6 (margin, 128-d), 79.92
(multi-similarity, 128-d, 227 x 227 pixels). Margin and multi-similarity were trained with other recipes than the one
used here. All numbers and their sources: configs/published.csv. No results are published for a fixed schedule. Cost:
not published. For the sources of the settings, see configs/recipes/baseline.py.
"""

from ml_collections import ConfigDict

from configs.base import EVALUATION, experiment
from configs.recipes import baseline

PAPER_PROTOCOL, VARIANTS = baseline.PAPER_PROTOCOL, baseline.VARIANTS
CLASSES, IMAGES = 98, 8_054  # in training


def get_config(variant: str = "") -> ConfigDict:
    match variant:
        case "" | "normalized_softmax":
            sections = baseline.normalized_softmax("cars", classes=CLASSES, learning_rate=1e-2, images_per_class=25)
        case "proxy_anchor":
            sections = baseline.proxy_anchor(
                "cars", learning_rate=1e-4, warmup=5, every=10, gamma=0.5, batch_size=120, freeze_bn=True
            )
        case size if size in baseline.PROXY_NCA_PP:
            sections = baseline.proxy_nca_pp(
                "cars", classes=CLASSES, learning_rate=4e-3, proxies=4e2, epochs=40, batch=(32, 4), variant=size
            )
        case memory if memory in baseline.MEMORIES:
            sections = baseline.memory("cars", memory, images=IMAGES)
        case loss:
            sections = baseline.shared("cars", loss, epochs=150)
    return experiment("cars_baseline", variant, **sections, evaluation=EVALUATION["cars"])
