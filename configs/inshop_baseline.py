"""Losses from the literature on In-Shop Clothes: ResNet-50, 512-d or 128-d.

Published: R@1 92.1 (Proxy-Anchor), 90.4 (ProxyNCA++), 90.11 (multi-similarity, 128-d, 227 x 227 pixels), 91.3
(contrastive with memory, 128-d). Margin and multi-similarity were trained with other recipes than the one used here.
All numbers and their sources: configs/published.csv. No results are published for a fixed schedule. Cost: not
published. For the sources of the settings, see configs/recipes/baseline.py.
"""

from ml_collections import ConfigDict

from configs.base import EVALUATION, experiment
from configs.recipes import baseline

PAPER_PROTOCOL, VARIANTS = baseline.PAPER_PROTOCOL, baseline.VARIANTS
CLASSES, IMAGES = 3_997, 25_882  # in training


def get_config(variant: str = "") -> ConfigDict:
    match variant:
        case "" | "normalized_softmax":
            sections = baseline.normalized_softmax("inshop", classes=CLASSES, learning_rate=1e-2, images_per_class=5)
        case "proxy_anchor":
            sections = baseline.proxy_anchor(
                "inshop", learning_rate=6e-4, warmup=1, every=20, gamma=0.25, batch_size=180, freeze_bn=False
            )
        case size if size in baseline.PROXY_NCA_PP:
            sections = baseline.proxy_nca_pp(
                "inshop", classes=CLASSES, learning_rate=2.4e-2, proxies=2.4e3, epochs=80, batch=(192, 3), variant=size
            )
        case memory if memory in baseline.MEMORIES:
            sections = baseline.memory("inshop", memory, images=IMAGES)
        case loss:
            sections = baseline.shared("inshop", loss, epochs=100)
    return experiment("inshop_baseline", variant, **sections, evaluation=EVALUATION["inshop"])
