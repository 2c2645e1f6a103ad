"""Losses from the literature on CUB-200-2011: ResNet-50, 512-d or 128-d.

Published: R@1 61.3 (normalised softmax), 69.7 (Proxy-Anchor), 69.0 (ProxyNCA++), 63.6 (margin, 128-d), 62.64
(multi-similarity, 128-d, 227 x 227 pixels). Margin and multi-similarity were trained with other recipes than the one
used here. All numbers and their sources: configs/published.csv. No results are published for a fixed schedule. Cost:
not published. For the sources of the settings, see configs/recipes/baseline.py.
"""

from ml_collections import ConfigDict

from configs.base import EVALUATION, experiment
from configs.recipes import baseline

PAPER_PROTOCOL, VARIANTS = baseline.PAPER_PROTOCOL, baseline.VARIANTS
CLASSES, IMAGES = 100, 5_864  # in training


def get_config(variant: str = "") -> ConfigDict:
    match variant:
        case "" | "normalized_softmax":
            sections = baseline.normalized_softmax("cub", classes=CLASSES, learning_rate=1e-3, images_per_class=25)
        case "proxy_anchor":
            sections = baseline.proxy_anchor(
                "cub", learning_rate=1e-4, warmup=5, every=5, gamma=0.5, batch_size=120, freeze_bn=True
            )
        case size if size in baseline.PROXY_NCA_PP:
            sections = baseline.proxy_nca_pp(
                "cub", classes=CLASSES, learning_rate=4e-3, proxies=4e2, epochs=40, batch=(32, 4), variant=size
            )
        case memory if memory in baseline.MEMORIES:
            sections = baseline.memory("cub", memory, images=IMAGES)
        case loss:
            sections = baseline.shared("cub", loss, epochs=150)
    return experiment("cub_baseline", variant, **sections, evaluation=EVALUATION["cub"])
