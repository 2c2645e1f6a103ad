"""Losses from the literature on Stanford Online Products: ResNet-50, 512-d or 128-d.

Published: R@1 78.2 (normalised softmax), 80.0 (Proxy-Anchor), 80.7 (ProxyNCA++), 72.7 (margin,
128-d), 76.49 (multi-similarity, 128-d, 227 x 227 pixels), 80.6 (contrastive with memory, 128-d).
Cost: not published.
"""

from configs.recipes import baseline

PAPER_PROTOCOL, VARIANTS, get_config = baseline.on("sop")
