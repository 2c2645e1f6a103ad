"""CRT on Stanford Online Products: MiT-B2, 128-d (Kan et al., NeurIPS 2022)."""

from configs.crt.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("sop")
