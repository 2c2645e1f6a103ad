"""Losses from the literature on CUB-200-2011: ResNet-50, 512-d or 128-d.

Published: R@1 61.3 (normalised softmax), 69.7 (Proxy-Anchor), 69.0 (ProxyNCA++), 63.6 (margin,
128-d), 62.64 (multi-similarity, 128-d, 227 x 227 pixels). Cost: not published.
"""

from configs.recipes import baseline

PAPER_PROTOCOL, VARIANTS, get_config = baseline.on("cub")
