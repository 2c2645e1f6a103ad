"""HIST on Stanford Online Products: ResNet-50 or BN-Inception, 512-d (Lim et al., CVPR 2022)."""

from configs.hist.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("sop")
