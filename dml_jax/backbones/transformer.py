"""The parts of a vision transformer: positions of its patches, blocks, and attention pooling."""

from functools import partial
from typing import TYPE_CHECKING, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones.layers import DropPath, attention, compute_dtype, layer_norm, normal_init, transformer_dense
from dml_jax.numerics import at_least_float32

if TYPE_CHECKING:  # which imports this module
    from dml_jax.backbones.vit import Config


Interpolation = Literal["antialiased", "bicubic", "offset"]


def resizing_weights(old: int, new: int, interpolation: Interpolation) -> np.ndarray:
    """Weights float64 [new, old] with which torch resizes one axis (bicubic, `align_corners=False`).

    "antialiased" widens the kernel (Keys, a = -0.5) when it shrinks, and leaves out what is beyond the edge; the others
    (a = -0.75) repeat the edge, and "offset" scales by (new + 0.1) / old, as the code of DINO does.
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

    The centre of cell i of n has the coordinate (2 i + 1) / n - 1, and the angles of an axis are 2 pi times its
    coordinate times 100^(-4 k / d), k = 0, 1, ...: the same range for images of any size. The result is float64
    [rows * columns, d / 2], for d channels of a head; the first d / 4 angles belong to the row.
    """
    frequencies = 2 * np.pi * 100.0 ** -np.arange(0, 1, 4 / channels)
    rows, columns = (((2 * np.arange(n) + 1) / n - 1)[:, None] * frequencies for n in cells)
    return np.concatenate([np.repeat(rows, cells[1], axis=0), np.tile(columns, (cells[0], 1))], axis=1)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotates the pairs of channels (k, k + d / 2) of the last P tokens by angles [P, d / 2]; others have no position.

    x, queries or keys, is float [B, N, heads, d].
    """
    before = x.shape[1] - angles.shape[0]
    first, second = jnp.split(at_least_float32(x[:, before:]), 2, axis=-1)
    angles = angles.astype(first.dtype)[None, :, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([x[:, :before], rotated.astype(x.dtype)], axis=1)


def norm(config: "Config", name: str) -> nn.LayerNorm:
    """Layer normalisation with the epsilon of the network."""
    return layer_norm(config.epsilon, dtype=compute_dtype(config.dtype), name=name)


def repeated(token: jax.Array, x: jax.Array) -> jax.Array:
    """Tokens [1, n, C] for each image of x [B, N, C], in its type; the gradient is summed in the tokens' own."""
    return jnp.broadcast_to(token, (x.shape[0], *token.shape[1:])).astype(x.dtype)


class Attention(nn.Module):
    """Multi-head self-attention."""

    config: "Config"

    @nn.compact
    def __call__(self, x: jax.Array, angles: jax.Array | None = None) -> jax.Array:
        """float [B, N, C] -> float [B, N, C]; `angles` [P, C / heads / 2] belong to the last P tokens."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        shape = (*x.shape[:2], 3, config.heads, config.width // config.heads)
        qkv = transformer_dense(3 * config.width, bias=angles is None, dtype=dtype, name="qkv")(x).reshape(shape)
        queries, keys, values = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        if angles is not None:

            def bias(name: str) -> jax.Array:
                vector = self.param(name, nn.initializers.zeros_init(), (config.width,), jnp.float32)
                return vector.reshape(1, 1, *shape[3:])

            queries, keys = (rotate(y, angles) for y in ((queries + bias("q_bias")).astype(x.dtype), keys))
            values = (values + bias("v_bias")).astype(x.dtype)
        return transformer_dense(config.width, dtype=dtype, name="proj")(attention(queries, keys, values))


class AttentionPooling(nn.Module):
    """y + mlp(norm(y)), where y is the attention of a learned query to all tokens (SigLIP; Zhai et al., CVPR 2022)."""

    config: "Config"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, N, C] -> float [B, 1, C]."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        probe = self.param("latent", normal_init(config.width**-0.5), (1, 1, config.width), jnp.float32)
        probe = repeated(probe, x)
        qkv = transformer_dense(3 * config.width, dtype=dtype, name="qkv")(jnp.concatenate([probe, x], axis=1))
        qkv = qkv.reshape(x.shape[0], -1, 3, config.heads, config.width // config.heads)
        y = attention(qkv[:, :1, 0], qkv[:, 1:, 1], qkv[:, 1:, 2])
        y = transformer_dense(config.width, dtype=dtype, name="proj")(y)
        return y + mlp(config, norm(config, "norm")(y))


def mlp(config: "Config", x: jax.Array) -> jax.Array:
    """The MLP of a block as modules of the one that calls it: float [B, N, C] -> float [B, N, C]."""
    dense = partial(transformer_dense, dtype=compute_dtype(config.dtype))
    if config.mlp == "swiglu":
        hidden = config.hidden or -(-(8 * config.width // 3) // 8) * 8  # two thirds, as a multiple of 8
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
        gamma = self.param("gamma", nn.initializers.constant(self.initial), x.shape[-1:], jnp.float32)
        return (x * gamma.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), both branches scaled if the configuration says so."""

    config: "Config"
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
