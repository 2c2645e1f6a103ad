"""DeiT: data-efficient image transformers (Touvron et al., ICML 2021).

DeiT-S is the ViT-S/16 of `vit.py`; the distilled variant has a second token and a second
classifier. 21,665,664 parameters without the classifier, 21,666,432 distilled, 85,798,656 in
DeiT-B. `LAYOUTS` serves all vision transformers, because tensors do not distinguish DeiT from ViT
and DINO, and all other networks also contain the markers of the plain one.
"""

import math
from functools import partial
from typing import Any, Literal

import numpy as np

from dml_jax.backbones import dinov3, siglip, vit
from dml_jax.backbones.contract import Pixels
from dml_jax.backbones.vit import Interpolation
from dml_jax.backbones.weights.convert import Layout, Network, Rule, length, transformer_sizes
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.fields import section


@section
class Config(vit.Config):
    """Options of a DeiT, a vision transformer with other weights; the defaults are DeiT-S."""

    name: str = "deit"
    output: Literal["class", "patches"] = "patches"
    pixels: Pixels = Pixels()


build, torch_module = vit.build, vit.torch_module
PUBLISHED = {
    "deit_small": Config(),
    "deit_small_distilled": Config(distilled=True),
    "deit_base": Config(**vit.SIZES["base"]),
}
CLASSIFIERS = ("head", "head_dist")
UNSEEN = vit.UNSEEN


def read_network(interpolation: Interpolation, tensors: StateDict) -> Network:
    """The vision transformer with these tensors; a plain one is assumed to be a DeiT."""
    sizes, distilled = transformer_sizes(tensors), "dist_token" in tensors
    width, patch = sizes["width"], sizes["patch"]
    registers = length(tensors, "reg_token") // width if "reg_token" in tensors else 0
    options: dict[str, Any] = {
        **sizes,
        "distilled": distilled,
        "registers": registers,
        "heads": max(1, width // 64),  # all published networks have heads of 64 channels
        "mlp": "gelu" if length(tensors, "blocks.0.mlp.fc1.bias") == 4 * width else "swiglu",
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
        "interpolation": "antialiased" if registers else interpolation,
    }
    learned = length(tensors, "pos_embed") // width
    # timm has already added the class token's position to the token.
    if registers and math.isqrt(learned) ** 2 == learned:
        tensors["pos_embed"] = np.pad(tensors["pos_embed"], ((0, 0), (1, 0), (0, 0)))
        learned += 1
    side = math.isqrt(max(learned - (2 if distilled else 1), 1)) * patch
    plain = not registers and not options["layer_scale"] and options["mlp"] == "gelu"
    config: vit.Config = Config(**options) if plain else vit.Config(**options, pixels=Pixels())
    return Network(config, side)


PATCHES = "embeddings.patch_embeddings.projection.weight"
# ViT, DeiT, DINOv2 with and without registers; names of transformers 4, as in the hub, and 5.
HUGGING_FACE: tuple[Rule, ...] = (
    (r"^(cls_classifier|classifier)\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
    (r"^embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^embeddings\.distillation_token", "dist_token"),
    (r"^embeddings\.register_tokens", "reg_token"),
    (r"^embeddings\.position_embeddings", "pos_embed"),
    (r"^embeddings\.", ""),
    (r"^(encoder\.layer|layers)\.", "blocks."),
    (r"\.attention\.(attention\.query|q_proj)", ".attn.qkv@0"),
    (r"\.attention\.(attention\.key|k_proj)", ".attn.qkv@1"),
    (r"\.attention\.(attention\.value|v_proj)", ".attn.qkv@2"),
    (r"\.attention\.(output\.dense|o_proj)", ".attn.proj"),
    (r"\.layernorm_before", ".norm1"),
    (r"\.layernorm_after", ".norm2"),
    (r"\.layer_scale(\d)\.lambda1", r".ls\1.gamma"),
    (r"\.intermediate\.dense|\.mlp\.weights_in", ".mlp.fc1"),
    (r"^(blocks\.\d+)\.output\.dense", r"\1.mlp.fc2"),
    (r"\.mlp\.gate_proj", ".mlp.fc1@0"),
    (r"\.mlp\.up_proj", ".mlp.fc1@1"),
    (r"\.mlp\.(weights_out|down_proj)", ".mlp.fc2"),
    (r"^layernorm\.", "norm."),
)
DINOV2: tuple[Rule, ...] = (
    (r"^register_tokens", "reg_token"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
)

# The first layout whose marker is among the tensors applies: networks with more tensors come first.
LAYOUTS = [
    *siglip.LAYOUTS,
    *dinov3.LAYOUTS,
    Layout("Hugging Face", PATCHES, partial(read_network, "bicubic"), HUGGING_FACE),
    Layout("DINOv2", "mask_token", partial(read_network, "offset"), DINOV2),
    Layout("timm", "blocks.0.attn.qkv.weight", partial(read_network, "antialiased")),
]
