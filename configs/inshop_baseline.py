"""Losses from the literature on In-Shop Clothes: ResNet-50, 512-d or 128-d."""

from configs.recipes.baseline import on

PAPER_PROTOCOL, VARIANTS, get_config = on("inshop")
