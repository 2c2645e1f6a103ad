"""Losses from the literature on Stanford Online Products: ResNet-50, 512-d or 128-d."""

from configs.recipes import large_batch
from configs.recipes.baseline import on

LARGE = large_batch.variants(180, per_device=60)
PAPER_PROTOCOL, VARIANTS, get_config = on(
    "sop", {f"proxy_anchor-{name}": overrides for name, overrides in LARGE.items()}
)
