"""DINOv3 (Siméoni et al., 2025): vision transformers trained without labels.

The network of `vit.py` with patches of 16 pixels, four registers, rotary positions of the patches
(class token and registers have none), keys without a bias, and norms with an epsilon of 1e-5.
Images may have any size. The random shifts and scales of coordinates in pretraining are omitted.
"""

from typing import Literal

import numpy as np

from dml_jax.backbones import vit
from dml_jax.backbones.contract import Pixels
from dml_jax.backbones.weights.convert import Layout, Network, Rule, length, transformer_sizes
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.fields import NonNegative, NonNegativeInt, Positive, section


@section
class Config(vit.Config):
    """Options of a DINOv3, a vision transformer with other weights; the defaults are ViT-S/16."""

    name: str = "dinov3"
    registers: NonNegativeInt = 4
    positions: Literal["learned", "rotary"] = "rotary"
    epsilon: Positive = 1e-5
    layer_scale: NonNegative = 1e-5
    pixels: Pixels = Pixels()


build, torch_module = vit.build, vit.torch_module
# 21,596,160, 85,659,648 and 303,128,576 parameters.
NAMES = ("small", "base", "large")
PUBLISHED = {f"dinov3_vit{size[0]}16": Config(**vit.SIZES[size]) for size in NAMES}
CLASSIFIERS = vit.CLASSIFIERS
UNSEEN = vit.UNSEEN


def read_network(tensors: StateDict) -> Network:
    """The DINOv3 with these tensors. timm omits biases that are zero."""
    sizes = transformer_sizes(tensors)
    width = sizes["width"]
    for index in range(sizes["depth"]):
        for name in ("q_bias", "v_bias"):
            tensors.setdefault(f"blocks.{index}.attn.{name}", np.zeros(width, np.float32))
    registers = length(tensors, "reg_token") // width
    config = Config(**sizes, heads=max(1, width // 64), registers=registers)
    return Network(config, 256, crop_fraction=1.0)


HUGGING_FACE: tuple[Rule, ...] = (
    (r"^embeddings\.patch_embeddings\.", "patch_embed.proj."),
    (r"^embeddings\.register_tokens", "reg_token"),
    (r"^embeddings\.", ""),
    (r"^(model\.)?layer\.", "blocks."),
    (r"\.attention\.([qv])_proj\.bias", r".attn.\1_bias"),
    (r"\.attention\.q_proj", ".attn.qkv@0"),
    (r"\.attention\.k_proj", ".attn.qkv@1"),
    (r"\.attention\.v_proj", ".attn.qkv@2"),
    (r"\.attention\.o_proj", ".attn.proj"),
    (r"\.layer_scale(\d)\.lambda1", r".ls\1.gamma"),
    (r"\.mlp\.up_proj", ".mlp.fc1"),
    (r"\.mlp\.down_proj", ".mlp.fc2"),
)
TIMM: tuple[Rule, ...] = ((r"\.gamma_(\d)$", r".ls\1.gamma"),)

LAYOUTS = [
    Layout("Hugging Face", "embeddings.patch_embeddings.weight", read_network, HUGGING_FACE),
    Layout("timm", "blocks.0.gamma_1", read_network, TIMM),
]
