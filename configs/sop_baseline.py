"""Losses from the literature on Stanford Online Products: ResNet-50, 512-d or 128-d.

Published: R@1 78.2 (normalised softmax), 80.0 (Proxy-Anchor), 80.7 (ProxyNCA++), 72.7 (margin,
128-d), 76.49 (multi-similarity, 128-d, 227 x 227 pixels), 80.6 (contrastive with memory, 128-d).
Cost: not published. `proxy_anchor-devices8` and `-devices16` are not the paper's: see
configs/recipes/large_batch.py.
"""

from functools import partial

from configs.recipes import baseline, large_batch

LARGE = {
    f"proxy_anchor-{name}": overrides
    for name, overrides in large_batch.variants(180, per_device=60).items()
}
PAPER_PROTOCOL, VARIANTS = baseline.base.PAPER_PROTOCOL, (*baseline.VARIANTS, *LARGE)
get_config = partial(baseline.config, "sop", variants=LARGE)
