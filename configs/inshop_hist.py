"""HIST on In-Shop Clothes: ResNet-50, 512-d (Lim et al., CVPR 2022)."""

from configs.hist.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("inshop")
