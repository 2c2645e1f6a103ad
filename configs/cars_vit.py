"""Losses with ViT-S on Cars196; no results are published with these settings.

The commands and variants are those of `cub_vit.py`. For the sources of the settings, see
configs/recipes/vit.py.
"""

from configs.recipes import vit

PAPER_PROTOCOL, VARIANTS, get_config = vit.on("cars")
