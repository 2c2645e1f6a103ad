"""Losses with ViT-S or ViT-B on CUB-200-2011; no results are published with these settings.

    dml-jax convert --weights=hf://timm/vit_small_patch14_dinov2.lvd142m
    python -m dml_jax.main --config=configs/cub_vit.py
    python -m dml_jax.main --config=configs/cub_vit.py:multi_similarity-vit_small

The second command trains with Proxy-Anchor from DINOv2; see configs/recipes/vit.py.
"""

from configs.recipes.vit import on

PAPER_PROTOCOL, VARIANTS, get_config = on("cub")
