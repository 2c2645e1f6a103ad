"""Losses with ViT-S or ViT-B on Cars196; see `cub_vit.py`."""

from configs.recipes.vit import on

PAPER_PROTOCOL, VARIANTS, get_config = on("cars")
