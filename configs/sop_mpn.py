"""MPN on Stanford Online Products: ResNet-50, 512-d (Seidenschwarz et al., ICML 2021)."""

from configs.mpn.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("sop")
