"""Losses from the literature on In-Shop Clothes: ResNet-50, 512-d or 128-d.

Published: R@1 92.1 (Proxy-Anchor), 90.4 (ProxyNCA++), 90.11 (multi-similarity, 128-d, 227 x 227
pixels), 91.3 (contrastive with memory, 128-d). Cost: not published.
"""

from configs.recipes import baseline

PAPER_PROTOCOL, VARIANTS, get_config = baseline.on("inshop")
