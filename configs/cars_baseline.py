"""Losses from the literature on Cars196: ResNet-50, 512-d or 128-d.

Published: R@1 84.2 (normalised softmax), 87.7 (Proxy-Anchor), 86.5 (ProxyNCA++), 79.6 (margin,
128-d), 79.92 (multi-similarity, 128-d, 227 x 227 pixels). Cost: not published.
"""

from configs.recipes import baseline

PAPER_PROTOCOL, VARIANTS, get_config = baseline.on("cars")
