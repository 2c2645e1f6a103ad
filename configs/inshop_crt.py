"""CRT on In-Shop Clothes: MiT-B2, 128-d (Kan et al., NeurIPS 2022)."""

from configs.crt.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("inshop")
