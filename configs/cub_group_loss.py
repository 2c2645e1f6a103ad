"""The Group Loss on CUB-200-2011: BN-Inception, 1,024-d (Elezi et al., ECCV 2020)."""

from configs.group_loss.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("cub")
