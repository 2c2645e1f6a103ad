"""An image is worth 16x16 words: transformers for image recognition at scale (Dosovitskiy et al.,
ICLR 2021).

The pre-norm transformer on patches of pixels, as timm publishes it ("augreg": Steiner et al., TMLR
2022), and with the weights and parts of DeiT, DINO and DINOv2: distillation token, registers,
scales of the residual branches, gated MLP. `dinov3.py` and `siglip.py` are this network, too, with
rotary positions and with attention pooling. Pixels beyond the last whole patch are ignored. The
epsilon of the norms is that with which the weights were trained; transformers computes ViT and
DeiT, not DINOv2, with 1e-12 instead of 1e-6.

Initialised like timm's, without truncation.
"""

import math
import re
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones import contract
from dml_jax.backbones.contract import Backbone, ImageShape, Pixels, PyTree
from dml_jax.backbones.functional import as_backbone
from dml_jax.backbones.layers import (
    Conv,
    DropPath,
    DropRate,
    LayerNorm,
    attention,
    compute_dtype,
    normal_init,
    require_size,
    transformer_dense,
)
from dml_jax.backbones.weights.convert import dotted
from dml_jax.config.fields import (
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    require,
    section,
)
from dml_jax.numerics import at_least_float32

Interpolation = Literal["antialiased", "bicubic", "offset"]

HALF = Pixels(
    mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
)  # of the weights that Google and timm trained ("augreg")


@section
class Config(contract.Config):
    """Options of a vision transformer; the defaults are ViT-S/16."""

    name: str = "vit"
    # The summary of the image (class token or result of attention pooling) as a map of one cell, or
    # the map of patches.
    output: Literal["class", "patches"] = "class"
    # A class token, or attention pooling of the patches (SigLIP).
    summary: Literal["token", "attention"] = "token"
    distilled: bool = False  # with a distillation token (DeiT)
    # More tokens without a position, which the output leaves out (DINOv2).
    registers: NonNegativeInt = 0
    # Learned embeddings of the positions, or rotations of queries and keys, which then have no bias
    # (DINOv3).
    positions: Literal["learned", "rotary"] = "learned"
    depth: PositiveInt = 12  # blocks
    width: PositiveInt = 384  # channels
    heads: PositiveInt = 6  # of the attention
    patch: PositiveInt = 16  # side in pixels
    # gelu_tanh: approximate; swiglu: gated, in DINOv2's ViT-g.
    mlp: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu"
    # Channels inside the MLPs; 0: four times the width, or two thirds of that if gated.
    hidden: NonNegativeInt = 0
    epsilon: Positive = 1e-6  # added to the variance by the norms
    # Initial scale of each channel of the residual branches; 0: no scales.
    layer_scale: NonNegative = 0.0
    # How pretrained positions are resized for other image sizes: as timm and DINOv2 with registers,
    # as transformers, or as the code of DINO and of DINOv2 without registers.
    interpolation: Interpolation = "antialiased"
    # Rate of stochastic depth in the last block; increases linearly from 0 in the first.
    drop_path: DropRate = 0.0
    pixels: Pixels = HALF

    @property
    def fixed_size(self) -> bool:
        """Whether the positions are learned, for one size of images."""
        return self.positions == "learned"

    @staticmethod
    def layer(name: str) -> int | None:
        """0 for the embeddings, i + 1 for block i, None for everything else; see
        `contract.Config`."""
        block = re.fullmatch(r"blocks_(\d+)", name)
        return int(block[1]) + 1 if block else 0 if name.endswith(("_embed", "_token")) else None

    def __post_init__(self) -> None:
        require(
            self.width % self.heads == 0,
            "width",
            self.width,
            f"must be a multiple of heads={self.heads}",
        )
        if self.positions == "rotary":
            rule = "must be a multiple of 4 with rotary positions"
            require(
                (self.width // self.heads) % 4 == 0, "width / heads", self.width // self.heads, rule
            )


SIZES: dict[str, dict[str, Any]] = {  # ViT-S, B, L and g: 384, 768, 1,024 and 1,536 channels
    "small": {"depth": 12, "width": 384, "heads": 6},
    "base": {"depth": 12, "width": 768, "heads": 12},
    "large": {"depth": 24, "width": 1024, "heads": 16},
    "giant": {"depth": 40, "width": 1536, "heads": 24},
}


PUBLISHED = {  # by name, as their authors call them
    # timm's ("augreg"): patches of 16 pixels; 21,665,664, 85,798,656 and 303,301,632 parameters.
    **{f"vit_{size}": Config(**SIZES[size]) for size in ("small", "base", "large")},
    # As large, and trained without labels by DINO (Caron et al., ICCV 2021).
    **{
        f"dino_vit{size[0]}{patch}": Config(
            **SIZES[size], patch=patch, interpolation="offset", pixels=Pixels()
        )
        for size in ("small", "base")
        for patch in (16, 8)
    },
    # DINOv2, trained without labels (Oquab et al., TMLR 2024; with registers, Darcet et al., ICLR
    # 2024): 22,056,192, 86,579,712, 304,367,616 and 1,136,479,232 parameters, for images of 518
    # pixels.
    **{
        f"dinov2_vit{size[0]}14{'_reg' if registers else ''}": Config(
            **SIZES[size],
            patch=14,
            registers=registers,
            mlp="swiglu" if size == "giant" else "gelu",
            layer_scale=1e-5,
            interpolation="antialiased" if registers else "offset",
            pixels=Pixels(),
        )
        for size in SIZES
        for registers in (0, 4)
    },
}
CLASSIFIERS: tuple[str, ...] = ("head",)
UNSEEN = ("heads", "mlp", "epsilon", "positions")


def resizing_weights(old: int, new: int, interpolation: Interpolation) -> np.ndarray:
    """Weights float64 [new, old] with which torch resizes one axis (bicubic,
    `align_corners=False`).

    "antialiased" widens the kernel (Keys, a = -0.5) when it shrinks, and leaves out what is beyond
    the edge; the others (a = -0.75) repeat the edge, and "offset" scales by (new + 0.1) / old, as
    the code of DINO does.
    """
    antialiased = interpolation == "antialiased"
    a, overhang = (-0.5, 0) if antialiased else (-0.75, 3)
    step = old / (new + 0.1 if interpolation == "offset" else new)
    sources = np.arange(-overhang, old + overhang)
    d = np.abs((np.arange(new)[:, None] + 0.5) * step - (sources + 0.5))
    d /= max(step, 1.0) if antialiased else 1.0
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    taps = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    weights = np.zeros((new, old))
    np.add.at(weights.T, sources.clip(0, old - 1), taps.T)
    return weights / weights.sum(axis=1, keepdims=True)


def patch_angles(cells: tuple[int, ...], channels: int) -> np.ndarray:
    """Angles of rotary positions along two axes, as in DINOv3 (Siméoni et al., 2025).

    The centre of cell i of n has the coordinate (2 i + 1) / n - 1, and the angles of an axis are 2
    pi times its coordinate times 100^(-4 k / d), k = 0, 1, ...: the same range for images of any
    size. The result is float64 [rows * columns, d / 2], for d channels of a head; the first d / 4
    angles belong to the row.
    """
    frequencies = 2 * np.pi * 100.0 ** -np.arange(0, 1, 4 / channels)
    rows, columns = (((2 * np.arange(n) + 1) / n - 1)[:, None] * frequencies for n in cells)
    return np.concatenate(
        [np.repeat(rows, cells[1], axis=0), np.tile(columns, (cells[0], 1))], axis=1
    )


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotates the pairs of channels (k, k + d / 2) of the last P tokens by angles [P, d / 2];
    others have no position.

    x, queries or keys, is float [B, N, heads, d].
    """
    before = x.shape[1] - angles.shape[0]
    first, second = jnp.split(at_least_float32(x[:, before:]), 2, axis=-1)
    angles = angles.astype(first.dtype)[None, :, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([x[:, :before], rotated.astype(x.dtype)], axis=1)


def norm(config: Config, name: str) -> LayerNorm:
    """Layer normalisation with the epsilon of the network."""
    return LayerNorm(config.epsilon, dtype=compute_dtype(config.dtype), name=name)


def repeated(token: jax.Array, x: jax.Array) -> jax.Array:
    """Tokens [1, n, C] for each image of x [B, N, C], in its type; the gradient is summed in the
    tokens' own."""
    return jnp.broadcast_to(token, (x.shape[0], *token.shape[1:])).astype(x.dtype)


class Attention(nn.Module):
    """Multi-head self-attention."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, angles: jax.Array | None = None) -> jax.Array:
        """float [B, N, C] -> float [B, N, C]; `angles` [P, C / heads / 2] belong to the last P
        tokens."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        shape = (*x.shape[:2], 3, config.heads, config.width // config.heads)
        qkv = transformer_dense(3 * config.width, bias=angles is None, dtype=dtype, name="qkv")(
            x
        ).reshape(shape)
        queries, keys, values = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        if angles is not None:

            def bias(name: str) -> jax.Array:
                vector = self.param(
                    name, nn.initializers.zeros_init(), (config.width,), jnp.float32
                )
                return vector.reshape(1, 1, *shape[3:])

            queries, keys = (
                rotate(y, angles) for y in ((queries + bias("q_bias")).astype(x.dtype), keys)
            )
            values = (values + bias("v_bias")).astype(x.dtype)
        return transformer_dense(config.width, dtype=dtype, name="proj")(
            attention(queries, keys, values)
        )


class AttentionPooling(nn.Module):
    """y + mlp(norm(y)), where y is the attention of a learned query to all tokens (SigLIP; Zhai et
    al., CVPR 2022)."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, N, C] -> float [B, 1, C]."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        probe = self.param(
            "latent", normal_init(config.width**-0.5), (1, 1, config.width), jnp.float32
        )
        probe = repeated(probe, x)
        qkv = transformer_dense(3 * config.width, dtype=dtype, name="qkv")(
            jnp.concatenate([probe, x], axis=1)
        )
        qkv = qkv.reshape(x.shape[0], -1, 3, config.heads, config.width // config.heads)
        y = attention(qkv[:, :1, 0], qkv[:, 1:, 1], qkv[:, 1:, 2])
        y = transformer_dense(config.width, dtype=dtype, name="proj")(y)
        return y + mlp(config, norm(config, "norm")(y))


def mlp(config: Config, x: jax.Array) -> jax.Array:
    """The MLP of a block as modules of the one that calls it: float [B, N, C] -> float [B, N,
    C]."""
    dense = partial(transformer_dense, dtype=compute_dtype(config.dtype))
    if config.mlp == "swiglu":
        # Two thirds, as a multiple of 8.
        hidden = config.hidden or -(-(8 * config.width // 3) // 8) * 8
        gate, x = jnp.split(dense(2 * hidden, name="mlp_fc1")(x), 2, axis=-1)
        x = nn.silu(gate) * x
    else:
        x = dense(config.hidden or 4 * config.width, name="mlp_fc1")(x)
        x = nn.gelu(x, approximate=config.mlp == "gelu_tanh")
    return dense(config.width, name="mlp_fc2")(x)


class LayerScale(nn.Module):
    """A learned factor for each channel (Touvron et al., ICCV 2021)."""

    initial: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [..., C] -> the same shape."""
        gamma = self.param(
            "gamma", nn.initializers.constant(self.initial), x.shape[-1:], jnp.float32
        )
        return (x * gamma.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), both branches scaled if the configuration says
    so."""

    config: Config
    drop_path: float

    @nn.compact
    def __call__(self, x: jax.Array, angles: jax.Array | None = None) -> jax.Array:
        """float [B, N, C] -> float [B, N, C]; `angles` as for `Attention`."""
        config = self.config

        def branch(y: jax.Array, scale: str) -> jax.Array:
            y = LayerScale(config.layer_scale, name=scale)(y) if config.layer_scale else y
            return DropPath(self.drop_path)(y)

        x = x + branch(Attention(config, name="attn")(norm(config, "norm1")(x), angles), "ls1")
        return x + branch(mlp(config, norm(config, "norm2")(x)), "ls2")


class VisionTransformer(nn.Module):
    """The network without classifiers."""

    config: Config

    @nn.compact
    def encode(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """float [B, H, W, 3] -> float [B, T + h w, C] after the final norm, and their summary [B,
        1, C].

        The first T tokens are the class token (if there is one), the distillation token (if
        distilled) and the registers.
        """
        config, dtype = self.config, compute_dtype(self.config.dtype)
        fits = min(x.shape[1:3]) >= config.patch
        require_size(fits, x, f"smaller than a patch; use at least {config.patch}x{config.patch}")
        # N(0, 1 / (3 fan in)), the variance of PyTorch's default for convolutions.
        patch_init = normal_init((3 * config.patch**2 * x.shape[-1]) ** -0.5)
        embed = partial(
            Conv, use_bias=True, kernel_init=patch_init, dtype=dtype, name="patch_embed"
        )
        x = embed(config.width, config.patch, config.patch)(x)
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
            x = (x + self.param("pos_embed", normal_init(0.02), (1, length, config.width))).astype(
                x.dtype
            )
        else:
            angles = jnp.asarray(patch_angles(cells, config.width // config.heads), float)
        if config.registers:
            registers = self.param(
                "reg_token", normal_init(1e-6), (1, config.registers, config.width)
            )
            x = jnp.concatenate(
                [x[:, : len(prefix)], repeated(registers, x), x[:, len(prefix) :]], axis=1
            )
        block = nn.remat(Block) if config.remat else Block
        for index in range(config.depth):
            rate = config.drop_path * index / max(config.depth - 1, 1)
            x = block(config, rate, name=f"blocks_{index}")(x, angles)
        x = norm(config, "norm")(x)
        return x, AttentionPooling(config, name="attn_pool")(
            x
        ) if config.summary == "attention" else x[:, :1]

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, H // patch, W // patch, C], or [B, 1, 1, C] for the
        summary."""
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
    """Resizes the positional embeddings of a square grid to the grid of the images; other tokens
    keep theirs."""
    learned, prefix = (
        np.asarray(params.get("pos_embed", np.zeros((1, 0, 0)))),
        _positions_before_patches(config),
    )
    side, new = math.isqrt(max(learned.shape[1] - prefix, 0)), grid(config, image_shape)
    if (side, side) == new or side * side != learned.shape[
        1
    ] - prefix:  # the caller reports none or a wrong length
        return params
    patches = learned[:, prefix:].reshape(side, side, -1)
    rows, columns = (resizing_weights(side, size, config.interpolation) for size in new)
    resized = np.einsum("hi,wj,ijc->hwc", rows, columns, patches, optimize=True).reshape(
        1, -1, patches.shape[-1]
    )
    return params | {
        "pos_embed": np.concatenate([learned[:, :prefix], resized.astype(learned.dtype)], axis=1)
    }


def build(config: Config) -> Backbone:
    """A vision transformer as a backbone, for images of a patch or more."""
    return as_backbone(
        VisionTransformer(config), config.width, config, partial(resize_positions, config)
    )


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in timm."""
    joined = dotted(".".join(modules)).replace("mlp_", "mlp.")
    return "patch_embed.proj" if joined == "patch_embed" else joined
