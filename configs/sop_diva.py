"""DiVA on Stanford Online Products: ResNet-50, BN-Inception, 512-d (Milbich et al., ECCV 2020)."""

from configs.diva.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("sop")
