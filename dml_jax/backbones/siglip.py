"""The image towers of SigLIP (Zhai et al., ICCV 2023) and SigLIP 2 (Tschannen et al., 2025).

The network of `vit.py` without a class token, with the approximate GELU, and with attention pooling
of the patches, whose result is the image's embedding in the space of images and texts. Both
generations use this network and the same tensors, except for the towers for native aspect ratios
("naflex"), which are not included.

The authors' code and transformers use the approximate GELU; timm uses the exact one in ViT-B, ViT-L
and So400m with patches of 14 pixels, so its outputs differ slightly.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from dml_jax.backbones import vit
from dml_jax.backbones.vit import Interpolation
from dml_jax.backbones.weights.convert import Layout, Network, Rule, length, transformer_sizes
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.fields import PositiveInt, section


@section
class Config(vit.Config):
    """Options of a SigLIP image tower, a vision transformer; the defaults are ViT-B/16."""

    name: str = "siglip"
    summary: Literal["token", "attention"] = "attention"
    width: PositiveInt = 768
    heads: PositiveInt = 12
    mlp: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu_tanh"


build, torch_module = vit.build, vit.torch_module
SO400M = Config(depth=27, width=1152, heads=16, hidden=4304)  # shape-optimised
# For 256 pixels, patches of 16: 92,930,304, 315,956,224, 427,888,064, 1,163,168,256 parameters.
PUBLISHED = {
    "siglip_vitb16": Config(),
    "siglip_vitb32": Config(patch=32),
    "siglip_vitl16": Config(**vit.SIZES["large"]),
    "siglip_so400m14": replace(SO400M, patch=14),
    "siglip_so400m16": SO400M,
    "siglip_vitg16": Config(depth=40, width=1536, heads=16),
}
CLASSIFIERS = vit.CLASSIFIERS
UNSEEN = vit.UNSEEN


def read_network(interpolation: Interpolation, tensors: StateDict) -> Network:
    """The image tower with these tensors."""
    sizes, hidden = transformer_sizes(tensors), length(tensors, "blocks.0.mlp.fc1.bias")
    width = sizes["width"]
    cells = length(tensors, "pos_embed") // width
    tensors["pos_embed"] = tensors["pos_embed"].reshape(1, cells, width)
    config = Config(
        **sizes,
        heads=16 if width > 1024 else max(1, width // 64),
        hidden=0 if hidden == 4 * width else hidden,
        interpolation=interpolation,
    )
    return Network(config, round(cells**0.5) * config.patch, crop_fraction=1.0)


# The names in transformers; the authors' files in this layout also contain the text tower.
HUGGING_FACE: tuple[Rule, ...] = (
    (r"^embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"^embeddings\.position_embedding\.weight", "pos_embed"),
    (r"^encoder\.layers\.", "blocks."),
    (r"\.self_attn\.q_proj", ".attn.qkv@0"),
    (r"\.self_attn\.k_proj", ".attn.qkv@1"),
    (r"\.self_attn\.v_proj", ".attn.qkv@2"),
    (r"\.self_attn\.out_proj", ".attn.proj"),
    (r"\.layer_norm(\d)", r".norm\1"),
    (r"^post_layernorm\.", "norm."),
    (r"^head\.probe", "attn_pool.latent"),
    (r"^head\.attention\.in_proj_", "attn_pool.qkv."),
    (r"^head\.attention\.out_proj", "attn_pool.proj"),
    (r"^head\.layernorm", "attn_pool.norm"),
    (r"^head\.mlp", "attn_pool.mlp"),
)
TIMM: tuple[Rule, ...] = (
    (r"^attn_pool\.q\.", "attn_pool.qkv@0."),
    (r"^attn_pool\.kv\.", "attn_pool.qkv@1."),
)

LAYOUTS = [
    Layout("Hugging Face", "head.probe", partial(read_network, "bicubic"), HUGGING_FACE),
    Layout("timm", "attn_pool.latent", partial(read_network, "antialiased"), TIMM),
]
