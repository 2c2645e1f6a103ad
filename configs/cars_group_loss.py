"""The Group Loss on Cars196: BN-Inception, 1,024-d (Elezi et al., ECCV 2020)."""

from configs.group_loss.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("cars")
