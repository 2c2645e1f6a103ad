"""An image is worth 16x16 words: transformers for image recognition at scale (Dosovitskiy et al., ICLR 2021).

The pre-norm transformer on patches of pixels, as timm publishes it ("augreg": Steiner et al., TMLR 2022), and with the
weights and parts of DeiT, DINO and DINOv2: distillation token, registers, scales of the residual branches, gated MLP.
`dinov3.py` and `siglip.py` are this network, too, with rotary positions and with attention pooling. Pixels beyond the
last whole patch are ignored. The epsilon of the norms is that with which the weights were trained; transformers
computes ViT and DeiT, not DINOv2, with 1e-12 instead of 1e-6.

Initialised like timm's, without truncation.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones.contract import Backbone, ImageShape, Pixels, PyTree
from dml_jax.backbones.functional import as_backbone, freeze
from dml_jax.backbones.layers import DropRate, compute_dtype, conv, normal_init, require_size
from dml_jax.backbones.transformer import (
    AttentionPooling,
    Block,
    Interpolation,
    norm,
    patch_angles,
    repeated,
    resizing_weights,
)
from dml_jax.backbones.weights.convert import dotted
from dml_jax.config.fields import Dtype, NonNegative, NonNegativeInt, Positive, PositiveInt, require, section

__all__ = ["Config", "build", "dino", "dinov2", "vit"]

Size = Literal["small", "base", "large", "giant"]

HALF = Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # of the weights that Google and timm trained ("augreg")


@section
class Config:
    """Options of a vision transformer; the defaults are ViT-S/16."""

    name: str = "vit"
    # The summary of the image (class token or result of attention pooling) as a map of one cell, or the map of patches.
    output: Literal["class", "patches"] = "class"
    summary: Literal["token", "attention"] = "token"  # a class token, or attention pooling of the patches (SigLIP)
    distilled: bool = False  # with a distillation token (DeiT)
    registers: NonNegativeInt = 0  # more tokens without a position, which the output leaves out (DINOv2)
    # Learned embeddings of the positions, or rotations of queries and keys, which then have no bias (DINOv3).
    positions: Literal["learned", "rotary"] = "learned"
    depth: PositiveInt = 12  # blocks
    width: PositiveInt = 384  # channels
    heads: PositiveInt = 6  # of the attention
    patch: PositiveInt = 16  # side in pixels
    mlp: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu"  # gelu_tanh: approximate; swiglu: gated, in DINOv2's ViT-g
    hidden: NonNegativeInt = 0  # channels inside the MLPs; 0: four times the width, or two thirds of that if gated
    epsilon: Positive = 1e-6  # added to the variance by the norms
    layer_scale: NonNegative = 0.0  # initial scale of each channel of the residual branches; 0: no scales
    # How pretrained positions are resized for other image sizes: as timm and DINOv2 with registers, as transformers, or
    # as the code of DINO and of DINOv2 without registers.
    interpolation: Interpolation = "antialiased"
    drop_path: DropRate = 0.0  # rate of stochastic depth in the last block; increases linearly from 0 in the first
    frozen_blocks: NonNegativeInt = 0  # the first blocks, which are not trained; if any, nor is the embedding below
    pretrained: str = "none"  # directory written by `dml-jax convert`, or "none"
    pixels: Pixels = HALF
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well

    def __post_init__(self) -> None:
        require(self.width % self.heads == 0, "width", self.width, f"must be a multiple of heads={self.heads}")
        if self.positions == "rotary":
            rule = "must be a multiple of 4 with rotary positions"
            require((self.width // self.heads) % 4 == 0, "width / heads", self.width // self.heads, rule)
        rule = f"must not exceed depth={self.depth}"
        require(self.frozen_blocks <= self.depth, "frozen_blocks", self.frozen_blocks, rule)


def vit(size: Size) -> Config:
    """ViT-S, B or L with patches of 16 pixels, as timm publishes them ("augreg").

    21,665,664, 85,798,656 or 303,301,632 parameters; 384, 768 or 1,024 channels.
    """
    depth, width, heads = {
        "small": (12, 384, 6), "base": (12, 768, 12), "large": (24, 1024, 16), "giant": (40, 1536, 24)
    }[size]  # fmt: skip
    return Config(depth=depth, width=width, heads=heads)


def dino(size: Literal["small", "base"], patch: Literal[8, 16]) -> Config:
    """ViT-S or B trained without labels by DINO (Caron et al., ICCV 2021); as large as `vit`."""
    return replace(vit(size), patch=patch, interpolation="offset", pixels=Pixels())


def dinov2(size: Size, *, registers: bool = False) -> Config:
    """ViT-S, B, L or g with patches of 14 pixels trained without labels by DINOv2 (Oquab et al., TMLR 2024).

    22,056,192, 86,579,712, 304,367,616 or 1,136,479,232 parameters, for images of 518 pixels; 384, 768, 1,024 or 1,536
    channels. With four registers (Darcet et al., ICLR 2024), 4 * channels parameters more.
    """
    return replace(
        vit(size),
        patch=14,
        registers=4 if registers else 0,
        mlp="swiglu" if size == "giant" else "gelu",
        layer_scale=1e-5,
        interpolation="antialiased" if registers else "offset",
        pixels=Pixels(),
    )


def _published() -> dict[str, Config]:
    letters: dict[str, Size] = {"s": "small", "b": "base", "l": "large", "g": "giant"}
    found = {"vit_small": vit("small"), "vit_base": vit("base"), "vit_large": vit("large")}
    found |= {"dino_vits16": dino("small", 16), "dino_vits8": dino("small", 8)}
    found |= {"dino_vitb16": dino("base", 16), "dino_vitb8": dino("base", 8)}
    for letter, size in letters.items():
        found[f"dinov2_vit{letter}14"] = dinov2(size)
        found[f"dinov2_vit{letter}14_reg"] = dinov2(size, registers=True)
    return found


PUBLISHED = _published()  # by name, as their authors call them
CLASSIFIERS: tuple[str, ...] = ("head",)
UNSEEN = ("heads", "mlp", "epsilon", "positions")


class VisionTransformer(nn.Module):
    """The network without classifiers."""

    config: Config

    @nn.compact
    def encode(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """float [B, H, W, 3] -> float [B, T + h w, C] after the final norm, and their summary [B, 1, C].

        The first T tokens are the class token (if there is one), the distillation token (if distilled) and the
        registers.
        """
        config, dtype = self.config, compute_dtype(self.config.dtype)
        fits = min(x.shape[1:3]) >= config.patch
        require_size(fits, x, f"smaller than a patch; use at least {config.patch}x{config.patch}")
        # N(0, 1 / (3 fan in)), the variance of PyTorch's default for convolutions.
        patch_init = normal_init((3 * config.patch**2 * x.shape[-1]) ** -0.5)
        x = conv(
            config.width, config.patch, config.patch, bias=True, dtype=dtype, kernel_init=patch_init, name="patch_embed"
        )(x)
        cells = x.shape[1:3]
        x = x.reshape(x.shape[0], -1, config.width)

        prefix, angles = [], None
        if config.summary == "token":
            prefix.append(self.param("cls_token", normal_init(1e-6), (1, 1, config.width)))
        if config.distilled:
            prefix.append(self.param("dist_token", normal_init(0.02), (1, 1, config.width)))
        length = len(prefix) + x.shape[1]
        x = jnp.concatenate([*(repeated(token, x) for token in prefix), x], axis=1)
        if config.positions == "learned":
            x = (x + self.param("pos_embed", normal_init(0.02), (1, length, config.width))).astype(x.dtype)
        else:
            angles = jnp.asarray(patch_angles(cells, config.width // config.heads), float)
        if config.registers:
            registers = self.param("reg_token", normal_init(1e-6), (1, config.registers, config.width))
            x = jnp.concatenate([x[:, : len(prefix)], repeated(registers, x), x[:, len(prefix) :]], axis=1)
        block = nn.remat(Block) if config.remat else Block
        for index in range(config.depth):
            rate = config.drop_path * index / max(config.depth - 1, 1)
            x = block(config, rate, name=f"blocks_{index}")(x, angles)
        x = norm(config, "norm")(x)
        return x, AttentionPooling(config, name="attn_pool")(x) if config.summary == "attention" else x[:, :1]

    def tokens(self, x: jax.Array) -> jax.Array:
        """The tokens of `encode`."""
        return self.encode(x)[0]

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, H // patch, W // patch, C], or [B, 1, 1, C] for the summary."""
        config = self.config
        tokens, summary = self.encode(x)
        if config.output == "class":
            return summary[:, None]
        patches = tokens[:, _positions_before_patches(config) + config.registers :]
        return patches.reshape(x.shape[0], *grid(config, x.shape[1:3]), config.width)


def _positions_before_patches(config: Config) -> int:
    return (config.summary == "token") + config.distilled


def grid(config: Config, image_shape: tuple[int, ...]) -> tuple[int, int]:
    """Number of whole patches (rows, columns) in an image of (height, width) pixels."""
    return image_shape[0] // config.patch, image_shape[1] // config.patch


def resize_positions(config: Config, params: PyTree, image_shape: ImageShape) -> PyTree:
    """Resizes the positional embeddings of a square grid to the grid of the images; other tokens keep theirs."""
    learned, prefix = np.asarray(params.get("pos_embed", np.zeros((1, 0, 0)))), _positions_before_patches(config)
    side, new = math.isqrt(max(learned.shape[1] - prefix, 0)), grid(config, image_shape)
    if (side, side) == new or side * side != learned.shape[1] - prefix:  # the caller reports none or a wrong length
        return params
    patches = learned[:, prefix:].reshape(side, side, -1)
    rows, columns = (resizing_weights(side, size, config.interpolation) for size in new)
    resized = np.einsum("hi,wj,ijc->hwc", rows, columns, patches, optimize=True).reshape(1, -1, patches.shape[-1])
    return params | {"pos_embed": np.concatenate([learned[:, :prefix], resized.astype(learned.dtype)], axis=1)}


def build(config: Config, source: str = "") -> Backbone:
    """A vision transformer as a backbone, for images of a patch or more.

    `source` is where its weights are published, for the error message if there are none; by default timm's.
    """
    adapt = partial(resize_positions, config)
    network = VisionTransformer(config)
    backbone = as_backbone(network, config.width, config, source=source or _source(config), adapt=adapt)
    if not config.frozen_blocks:
        return backbone
    embedding = ("patch_embed", "pos_embed", "cls_token", "dist_token", "reg_token")
    return freeze(backbone, {*embedding, *(f"blocks_{index}" for index in range(config.frozen_blocks))})


def _source(config: Config) -> str:
    size = {384: "small", 768: "base", 1024: "large", 1536: "giant"}.get(config.width, "small")
    if config.layer_scale:
        return f"hf://timm/vit_{size}_patch14_{'reg4_' if config.registers else ''}dinov2.lvd142m"
    if config.pixels.mean[0] == 0.5:
        return f"hf://timm/vit_{size}_patch{config.patch}_224.augreg_in21k_ft_in1k"
    return f"hf://timm/vit_{size}_patch{config.patch}_224.dino"


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in timm."""
    joined = dotted(".".join(modules)).replace("mlp_", "mlp.")
    return "patch_embed.proj" if joined == "patch_embed" else joined
