"""Losses with ViT-S on CUB-200-2011; no results are published with these settings.

    dml-jax convert --weights=hf://timm/vit_small_patch14_dinov2.lvd142m
    python -m dml_jax.main --config=configs/cub_vit.py
    python -m dml_jax.main --config=configs/cub_vit.py:multi_similarity-vit_small
    python -m dml_jax.main --config=configs/cub_vit.py --protocol=paper

The second command trains with Proxy-Anchor from DINOv2 under the clean protocol, the third with
another loss from other weights, the last under the authors' protocol. For the variants and the
sources of their settings, see configs/recipes/vit.py.
"""

from configs.recipes import vit

PAPER_PROTOCOL, VARIANTS, get_config = vit.on("cub")
