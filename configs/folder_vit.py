"""Normalised softmax on DINOv2's ViT-S/14, for your own image folders, with the data of
`folder_baseline`.

    dml-jax convert --weights=hf://timm/vit_small_patch14_dinov2.lvd142m
    python -m dml_jax.main --config=configs/folder_vit.py --config.data.path=photos/

The results include the published weights without further training, a strong baseline; to use these
unchanged, run `dml-jax embed --model=weights/dinov2_vits14 photos/`. Lower blocks are trained at
lower rates, which are conventional, not tuned. With few images or without a GPU, use the variant
`frozen`, which trains only the last two blocks.
"""

from dataclasses import replace
from functools import partial

from configs.base import Variants, experiment
from configs.folder_baseline import AUGMENTED, DATA, EVALUATION
from dml_jax.backbones import vit
from dml_jax.config import Group, Train
from dml_jax.methods import baseline

# All but the last two blocks and the last norm.
FROZEN = ("patch_embed", "pos_embed", "cls_token", "blocks_[0-9]")
VARIANTS: Variants = {"frozen": {f"train.groups.backbone/{name}.freeze": True for name in FROZEN}}
get_config = partial(
    experiment,
    "folder_vit",
    variants=VARIANTS,
    data=replace(DATA, training_size=0, **AUGMENTED),
    backbone=replace(
        vit.PUBLISHED["dinov2_vits14"], pretrained="weights/dinov2_vits14", drop_path=0.1
    ),
    method=baseline.make_config(embedding_dim=384),
    train=Train(
        groups={
            "backbone": Group(5e-5, weight_decay=0.05),
            "embedding": Group(1e-3, weight_decay=0.05),
            "loss": Group(1e-2),
        },
        epochs=20,
        optimizer="adamw",
        schedule="cosine",
        layer_decay=0.75,
    ),
    evaluation=EVALUATION,
)
