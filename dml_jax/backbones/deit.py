"""Training data-efficient image transformers & distillation through attention (Touvron et al., ICML 2021).

DeiT-S: a vision transformer with 12 pre-norm blocks on patches of 16x16 pixels; the distilled variant has a second
token and a second classifier. The feature map consists of the patch tokens after the final norm, without the class and
distillation tokens. Pixels beyond the last whole patch are ignored.

21,665,664 parameters without the classifier, 21,666,432 distilled. Initialised like timm's, without truncation.
"""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone, ImageShape, PyTree
from dml_jax.backbones.initializers import normal_init
from dml_jax.backbones.layers import DropPath, attention, compute_dtype, conv, layer_norm, transformer_dense
from dml_jax.backbones.linen_backbone import as_backbone
from dml_jax.errors import ConfigError
from dml_jax.options.backbones.deit import Config, deit_small, deit_small_distilled

__all__ = ["Config", "build", "deit_small", "deit_small_distilled"]

EPSILON = 1e-6


class Attention(nn.Module):
    """Multi-head self-attention."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, N, C] -> float [B, N, C]."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        qkv = transformer_dense(3 * config.width, dtype=dtype, name="qkv")(x)
        qkv = qkv.reshape(*x.shape[:2], 3, config.heads, config.width // config.heads)
        mixed = attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])
        return transformer_dense(config.width, dtype=dtype, name="proj")(mixed)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    config: Config
    drop_path: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, N, C] -> float [B, N, C]."""
        dtype = compute_dtype(self.config.dtype)
        y = Attention(self.config, name="attn")(layer_norm(EPSILON, dtype=dtype, name="norm1")(x))
        x = x + DropPath(self.drop_path)(y)
        y = layer_norm(EPSILON, dtype=dtype, name="norm2")(x)
        y = transformer_dense(4 * self.config.width, dtype=dtype, name="mlp_fc1")(y)
        y = transformer_dense(self.config.width, dtype=dtype, name="mlp_fc2")(nn.gelu(y, approximate=False))
        return x + DropPath(self.drop_path)(y)


class VisionTransformer(nn.Module):
    """The network without classifiers."""

    config: Config

    @nn.compact
    def tokens(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, 3] -> float [B, T + h w, C] after the final norm; T is 1, or 2 if distilled."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        if min(x.shape[1:3]) < config.patch:
            raise ConfigError(
                f"images of {x.shape[1]}x{x.shape[2]} pixels: smaller than a patch; "
                f"use at least {config.patch}x{config.patch}"
            )
        cells = grid(config, x.shape[1:3])
        # N(0, 1 / (3 fan in)), the variance of PyTorch's default for convolutions.
        patch_init = normal_init((3 * config.patch**2 * x.shape[-1]) ** -0.5)
        x = conv(
            config.width,
            config.patch,
            config.patch,
            bias=True,
            dtype=dtype,
            kernel_init=patch_init,
            name="patch_embed",
        )(x)
        x = x.reshape(x.shape[0], -1, config.width)
        prefix = [self.param("cls_token", normal_init(1e-6), (1, 1, config.width))]
        if config.distilled:
            prefix.append(self.param("dist_token", normal_init(0.02), (1, 1, config.width)))
        length = len(prefix) + cells[0] * cells[1]
        position = self.param("pos_embed", normal_init(0.02), (1, length, config.width))
        prefix = [jnp.broadcast_to(token.astype(x.dtype), (x.shape[0], 1, config.width)) for token in prefix]
        x = jnp.concatenate([*prefix, x], axis=1) + position.astype(x.dtype)
        block = nn.remat(Block) if config.remat else Block
        for index in range(config.depth):
            rate = config.drop_path * index / max(config.depth - 1, 1)
            x = block(config, rate, name=f"blocks_{index}")(x)
        return layer_norm(EPSILON, dtype=dtype, name="norm")(x)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, H // patch, W // patch, C]."""
        patches = self.tokens(x)[:, 2 if self.config.distilled else 1 :]
        return patches.reshape(x.shape[0], *grid(self.config, x.shape[1:3]), self.config.width)


def grid(config: Config, image_shape: tuple[int, ...]) -> tuple[int, int]:
    """Number of whole patches (rows, columns) in an image of (height, width) pixels."""
    return image_shape[0] // config.patch, image_shape[1] // config.patch


def tokens(config: Config, params: PyTree, inputs: jax.Array) -> jax.Array:
    """All tokens after the final norm: class token, distillation token (if distilled), patches.

    Args:
      params: as `build(config).init` returns them.
      inputs: float [B, H, W, 3], normalised.

    Returns:
      float [B, T + h w, C]; T is 1, or 2 if distilled.
    """
    return jnp.asarray(VisionTransformer(config).apply({"params": params}, inputs, method="tokens"))


def logits(heads: PyTree, tokens: jax.Array) -> jax.Array:
    """Logits of the ImageNet classifier, or the mean of both classifiers if distilled.

    Args:
      heads: {"head": {"kernel": [C, classes], "bias": [classes]}}, and an equal "head_dist" if distilled.
      tokens: float [B, N, C].

    Returns:
      float [B, classes].
    """
    scores = [
        tokens[:, position] @ heads[name]["kernel"] + heads[name]["bias"][None, :]
        for position, name in enumerate(("head", "head_dist"))
        if name in heads
    ]
    return sum(scores[1:], start=scores[0]) / len(scores)


def _resize_positions(config: Config, params: PyTree, image_shape: ImageShape) -> PyTree:
    """Resizes (bicubic) the positional embeddings of a square grid to that of the images; other tokens keep theirs."""
    positions, prefix = params["pos_embed"], 2 if config.distilled else 1
    side, new = math.isqrt(max(positions.shape[1] - prefix, 0)), grid(config, image_shape)
    if (side, side) == new or side * side != positions.shape[1] - prefix:  # a wrong length is reported by the caller
        return params
    patches = positions[:, prefix:].reshape(side, side, -1)
    resized = jax.image.resize(patches, (*new, patches.shape[-1]), "cubic").reshape(1, -1, patches.shape[-1])
    return params | {"pos_embed": jnp.concatenate([positions[:, :prefix], resized], axis=1)}


def build(config: Config) -> Backbone:
    """A DeiT as a backbone.

    Raises:
      ConfigError: by `init` and `apply`, if images are smaller than a patch.
      WeightsError: by `init`, if `config.pretrained` does not contain weights of this network.
    """
    source = f"hf://timm/deit_small_{'distilled_' if config.distilled else ''}patch16_224.fb_in1k"
    adapt = partial(_resize_positions, config)
    return as_backbone(VisionTransformer(config), config.width, config, source=source, adapt=adapt)
