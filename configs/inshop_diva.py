"""DiVA on In-Shop Clothes: ResNet-50, 512-d (Milbich et al., ECCV 2020)."""

from configs.diva.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("inshop")
