"""Vision transformer: an image is worth 16x16 words (Dosovitskiy et al., ICLR 2021).

The pre-norm transformer on patches of pixels, as timm publishes it ("augreg": Steiner et al., TMLR
2022), with what DeiT, DINO and DINOv2 add: distillation token, registers, scales of the residual
branches, gated MLP. `dinov3.py` uses this network with rotary positions, `siglip.py` with attention
pooling. Pixels beyond the last whole patch are ignored. The norms use the epsilon with which the
weights were trained; the package transformers uses 1e-12 instead of 1e-6 for ViT and DeiT.

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
    LayerNorm,
    attention,
    compute_dtype,
    gelu,
    normal_init,
    require_size,
    transformer_dense,
)
from dml_jax.backbones.weights.convert import dotted
from dml_jax.config.fields import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Rules,
    require,
    section,
)
from dml_jax.config.sections import backbone_is_frozen
from dml_jax.numerics import at_least_float32

Interpolation = Literal["antialiased", "bicubic", "offset"]

# The normalisation for the weights that Google and timm trained ("augreg").
HALF = Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@section
class Config(contract.Config):
    """Options of a vision transformer; the defaults are ViT-S/16.

    Attributes:
      output: Feature map: the class token (or other summary) as a map of one cell, or the map of
        the patches.
      summary: How the image is summarised: by a class token, or by attention pooling of the patches
        (SigLIP).
      distilled: Whether the network has a distillation token (DeiT).
      registers: Number of additional tokens that have no position and are not in the output
        (DINOv2).
      positions: Learned embeddings of the positions, or rotations of queries and keys, which then
        have no bias (DINOv3).
      depth: Number of blocks.
      width: Number of channels.
      heads: Attention heads per block.
      patch: Side of a patch in pixels.
      mlp: Activation of the MLPs: "gelu_tanh" is the approximate GELU; "swiglu" is gated, as in
        DINOv2's ViT-g.
      hidden: Channels inside the MLPs; 0: four times `width`, or two thirds of that if gated.
      epsilon: Added to the variance by the layer norms.
      layer_scale: Initial scale of each channel of the residual branches; 0: no scales.
      interpolation: How pretrained positions are resized for other image sizes: as by timm and by
        DINOv2 with registers ("antialiased"), by transformers ("bicubic"), or by the code of DINO
        and of DINOv2 without registers ("offset").
      drop_path: Rate of stochastic depth in the last block; it increases linearly from 0 in the
        first.
    """

    name: str = "vit"
    output: Literal["class", "patches"] = "class"
    summary: Literal["token", "attention"] = "token"
    distilled: bool = False
    registers: NonNegativeInt = 0
    positions: Literal["learned", "rotary"] = "learned"
    depth: PositiveInt = 12
    width: PositiveInt = 384
    heads: PositiveInt = 6
    patch: PositiveInt = 16
    mlp: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu"
    hidden: NonNegativeInt = 0
    epsilon: Positive = 1e-6
    layer_scale: NonNegative = 0.0
    interpolation: Interpolation = "antialiased"
    drop_path: Fraction = 0.0
    pixels: Pixels = HALF

    @property
    def fixed_size(self) -> bool:
        """Whether the positions are learned, for one size of images."""
        return self.positions == "learned"

    @staticmethod
    def layer(name: str) -> int | None:
        """See `contract.Config`."""
        block = re.fullmatch(r"blocks_(\d+)", name)
        return int(block[1]) + 1 if block else 0 if name.endswith(("_embed", "_token")) else None

    def __post_init__(self) -> None:
        channels, rest = divmod(self.width, self.heads)
        require(rest == 0, "width", self.width, f"must be a multiple of heads={self.heads}")
        rule = "must be a multiple of 4 with rotary positions"
        valid = self.positions != "rotary" or channels % 4 == 0
        require(valid, "width / heads", channels, rule)

    def inert(self, config: Any) -> Rules:
        """When options have an effect; see `config.fields.inert`."""
        return ((not backbone_is_frozen(config), "a backbone that is trained", "drop_path"),)


SIZES: dict[str, dict[str, Any]] = {  # ViT-S, B, L and g: 384, 768, 1,024 and 1,536 channels
    "small": {"depth": 12, "width": 384, "heads": 6},
    "base": {"depth": 12, "width": 768, "heads": 12},
    "large": {"depth": 24, "width": 1024, "heads": 16},
    "giant": {"depth": 40, "width": 1536, "heads": 24},
}


def _published() -> dict[str, Config]:
    """The published networks by the names that their authors use."""
    # timm's ("augreg"): patches of 16 pixels; 21,665,664, 85,798,656 and 303,301,632 parameters.
    networks = {f"vit_{size}": Config(**SIZES[size]) for size in ("small", "base", "large")}
    # The same sizes, trained without labels by DINO (Caron et al., ICCV 2021).
    dino: dict[str, Any] = {"interpolation": "offset", "pixels": Pixels()}
    for size in ("small", "base"):
        for patch in (16, 8):
            networks[f"dino_vit{size[0]}{patch}"] = Config(**SIZES[size], patch=patch, **dino)
    # DINOv2, trained without labels (Oquab et al., TMLR 2024; with registers, Darcet et al., ICLR
    # 2024), for images of 518 pixels: 22,056,192 to 1,136,479,232 parameters.
    for size, options in SIZES.items():
        v2 = {**options, **dino, "patch": 14, "layer_scale": 1e-5}
        v2["mlp"] = "swiglu" if size == "giant" else "gelu"
        networks[f"dinov2_vit{size[0]}14"] = Config(**v2)
        with_registers = {**v2, "registers": 4, "interpolation": "antialiased"}
        networks[f"dinov2_vit{size[0]}14_reg"] = Config(**with_registers)
    return networks


PUBLISHED = _published()
CLASSIFIERS: tuple[str, ...] = ("head",)
UNSEEN = ("heads", "mlp", "epsilon", "positions")


def resizing_weights(old: int, new: int, interpolation: Interpolation) -> np.ndarray:
    """Weights float64 [new, old] of torch's resizing of one axis (bicubic, `align_corners=False`).

    "antialiased" widens the kernel (Keys, a = -0.5) if the axis shrinks, and ignores positions
    outside; the others (a = -0.75) repeat the edge; "offset" scales by (new + 0.1) / old, as DINO
    does.
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
    pi times its coordinate times 100^(-4 k / d), k = 0, 1, ..., whatever the size. The result is
    float64 [rows * columns, d / 2] for a head of d channels; the first d / 4 are for the rows.
    """
    frequencies = 2 * np.pi * 100.0 ** -np.arange(0, 1, 4 / channels)
    rows, columns = (((2 * np.arange(n) + 1) / n - 1)[:, None] * frequencies for n in cells)
    return np.hstack([np.repeat(rows, cells[1], axis=0), np.tile(columns, (cells[0], 1))])


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotates channels (k, k + d / 2) of the last P tokens of x [B, N, heads, d] by [P, d / 2]."""
    before = x.shape[1] - angles.shape[0]
    first, second = jnp.split(at_least_float32(x[:, before:]), 2, axis=-1)
    angles = angles.astype(first.dtype)[None, :, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([x[:, :before], rotated.astype(x.dtype)], axis=1)


def split_heads(config: Config, qkv: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[B, N, 3 C] -> queries, keys and values, each [B, N, heads, C / heads]."""
    parts = qkv.reshape(*qkv.shape[:2], 3, config.heads, config.width // config.heads)
    return parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]


def norm(config: Config, name: str) -> LayerNorm:
    return LayerNorm(config.epsilon, dtype=compute_dtype(config.dtype), name=name)


def repeat_tokens(token: jax.Array, x: jax.Array) -> jax.Array:
    """Tokens [1, n, C] for each image of x [B, N, C], in its type; gradients are in the tokens'."""
    return jnp.broadcast_to(token, (x.shape[0], *token.shape[1:])).astype(x.dtype)


class Attention(nn.Module):
    """Multi-head self-attention."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, count: int, angles: jax.Array | None = None) -> jax.Array:
        """float [B, N, C] -> float [B, N, C].

        Args:
          x: the tokens, of which the first `count` are attended to.
          angles: [P, C / heads / 2] of the last P tokens.
        """
        config = self.config
        dense = partial(transformer_dense, dtype=compute_dtype(config.dtype))
        qkv = dense(3 * config.width, bias=angles is None, name="qkv")(x)
        queries, keys, values = split_heads(config, qkv)
        if angles is not None:

            def add_bias(y: jax.Array, name: str) -> jax.Array:
                zeros = nn.initializers.zeros_init()
                bias = self.param(name, zeros, (config.width,), jnp.float32)
                return (y + bias.reshape(1, 1, *y.shape[2:])).astype(x.dtype)

            queries, keys = rotate(add_bias(queries, "q_bias"), angles), rotate(keys, angles)
            values = add_bias(values, "v_bias")
        return dense(config.width, name="proj")(attention(queries, keys, values, count))


class AttentionPooling(nn.Module):
    """y + mlp(norm(y)), where y attends to all tokens with a learned query (Zhai et al., 2022)."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, N, C] -> float [B, 1, C]."""
        config = self.config
        dense = partial(transformer_dense, dtype=compute_dtype(config.dtype))
        start = normal_init(config.width**-0.5)
        query = self.param("latent", start, (1, 1, config.width), jnp.float32)
        tokens = jnp.concatenate([repeat_tokens(query, x), x], axis=1)
        queries, keys, values = split_heads(config, dense(3 * config.width, name="qkv")(tokens))
        y = dense(config.width, name="proj")(attention(queries[:, :1], keys[:, 1:], values[:, 1:]))
        return y + mlp(config, norm(config, "norm")(y))


def mlp(config: Config, x: jax.Array) -> jax.Array:
    """The MLP of a block, as submodules of the caller: float [B, N, C] -> float [B, N, C]."""
    dense = partial(transformer_dense, dtype=compute_dtype(config.dtype))
    if config.mlp == "swiglu":
        # Two thirds, as a multiple of 8.
        hidden = config.hidden or -(-(8 * config.width // 3) // 8) * 8
        gate, x = jnp.split(dense(2 * hidden, name="mlp_fc1")(x), 2, axis=-1)
        x = nn.silu(gate) * x
    else:
        x = dense(config.hidden or 4 * config.width, name="mlp_fc1")(x)
        x = gelu(x, approximate=config.mlp == "gelu_tanh")
    return dense(config.width, name="mlp_fc2")(x)


class LayerScale(nn.Module):
    """A learned factor for each channel (Touvron et al., ICCV 2021)."""

    initial: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [..., C] -> the same shape."""
        start = nn.initializers.constant(self.initial)
        gamma = self.param("gamma", start, x.shape[-1:], jnp.float32)
        return (x * gamma.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); both branches may be scaled."""

    config: Config
    drop_path: float

    @nn.compact
    def __call__(self, x: jax.Array, count: int, angles: jax.Array | None = None) -> jax.Array:
        """float [B, N, C] -> float [B, N, C]; `count` and `angles` as for `Attention`."""
        config = self.config

        def branch(y: jax.Array, scale: str) -> jax.Array:
            y = LayerScale(config.layer_scale, name=scale)(y) if config.layer_scale else y
            return DropPath(self.drop_path)(y)

        x = x + branch(
            Attention(config, name="attn")(norm(config, "norm1")(x), count, angles), "ls1"
        )
        return x + branch(mlp(config, norm(config, "norm2")(x)), "ls2")


class VisionTransformer(nn.Module):
    """The network without classifiers."""

    config: Config

    @nn.compact
    def encode(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """float [B, H, W, 3] -> float [B, T + h w, C] after the final norm, and summary [B, 1, C].

        The first T tokens are class token, distillation token and registers, if there are any.
        """
        config = self.config
        fits = min(x.shape[1:3]) >= config.patch
        require_size(fits, x, f"smaller than a patch; use at least {config.patch}x{config.patch}")
        # N(0, 1 / (3 fan in)), the variance of PyTorch's default for convolutions.
        start = normal_init((3 * config.patch**2 * x.shape[-1]) ** -0.5)
        dtype = compute_dtype(config.dtype)
        embed = partial(Conv, kernel_init=start, dtype=dtype, name="patch_embed")
        x = embed(config.width, config.patch, config.patch, use_bias=True)(x)
        cells = x.shape[1:3]
        x = x.reshape(x.shape[0], -1, config.width)

        def tokens(name: str, std: float, count: int) -> jax.Array:
            return self.param(name, normal_init(std), (1, count, config.width))

        prefix, angles = [], None
        if config.summary == "token":
            prefix.append(tokens("cls_token", 1e-6, 1))
        if config.distilled:
            prefix.append(tokens("dist_token", 0.02, 1))
        x = jnp.concatenate([*(repeat_tokens(token, x) for token in prefix), x], axis=1)
        if config.positions == "learned":
            x = (x + tokens("pos_embed", 0.02, x.shape[1])).astype(x.dtype)
        else:
            angles = jnp.asarray(patch_angles(cells, config.width // config.heads), float)
        if config.registers:
            registers = repeat_tokens(tokens("reg_token", 1e-6, config.registers), x)
            x = jnp.concatenate([x[:, : len(prefix)], registers, x[:, len(prefix) :]], axis=1)
        # In bfloat16, a multiple of 8 tokens: otherwise XLA copies every operand of a product.
        count = x.shape[1]
        if x.dtype == jnp.bfloat16:
            x = jnp.pad(x, ((0, 0), (0, -count % 8), (0, 0)))
            angles = None if angles is None else jnp.pad(angles, ((0, -count % 8), (0, 0)))
        block = nn.remat(Block, static_argnums=2) if config.remat else Block
        for index in range(config.depth):
            rate = config.drop_path * index / max(config.depth - 1, 1)
            x = block(config, rate, name=f"blocks_{index}")(x, count, angles)
        x = norm(config, "norm")(x[:, :count])
        if config.summary == "attention":
            return x, AttentionPooling(config, name="attn_pool")(x)
        return x, x[:, :1]

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, H // patch, W // patch, C] or a summary [B, 1, 1, C]."""
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
    """Resizes a square grid of learned positions to the grid of the images.

    Positions that are missing or whose number is wrong stay unchanged; the caller reports them.
    """
    learned, prefix = np.asarray(params.get("pos_embed", ())), _positions_before_patches(config)
    count = learned.shape[1] - prefix if learned.ndim == 3 else -1
    side, new = math.isqrt(max(count, 0)), grid(config, image_shape)
    if (side, side) == new or side * side != count:
        return params
    patches = learned[:, prefix:].reshape(side, side, -1)
    rows, columns = (resizing_weights(side, size, config.interpolation) for size in new)
    resized = np.einsum("hi,wj,ijc->hwc", rows, columns, patches, optimize=True)
    resized = resized.reshape(1, -1, patches.shape[-1]).astype(learned.dtype)
    return params | {"pos_embed": np.concatenate([learned[:, :prefix], resized], axis=1)}


def build(config: Config) -> Backbone:
    """A vision transformer as a backbone, for images of a patch or more."""
    adapt = partial(resize_positions, config)
    return as_backbone(VisionTransformer(config), config.width, config, adapt)


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in timm."""
    joined = dotted(".".join(modules)).replace("mlp_", "mlp.")
    return "patch_embed.proj" if joined == "patch_embed" else joined
