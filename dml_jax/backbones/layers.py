"""Layers that agree with torch's to rounding, in NHWC: batch normalisation, pooling, convolution, stochastic depth.

XLA's 'SAME' pads strided windows more on the right than on the left; torch pads both sides alike. Every padding is
therefore explicit here.
"""

from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

Dtype = Any


def conv(
    channels: int,
    size: int,
    stride: int = 1,
    *,
    padding: int = 0,
    bias: bool = False,
    groups: int = 1,
    dtype: Dtype,
    name: str,
) -> nn.Conv:
    """A square convolution padded alike on all four sides; `dtype` None computes in the dtype of inputs and weights."""
    return nn.Conv(
        channels,
        (size, size),
        (stride, stride),
        padding=((padding, padding), (padding, padding)),
        use_bias=bias,
        feature_group_count=groups,
        dtype=dtype,
        name=name,
    )


class BatchNorm(nn.Module):
    """Batch normalisation over all but the last axis, as torch.nn.BatchNorm2d does it.

    Normalises with the biased variance, remembers the unbiased one. Statistics are taken in at least float32 and in
    two passes: E[x^2] - E[x]^2 cancels where the mean is large.

    Attributes:
      momentum: weight of the new batch in the running statistics (torch's sense; Flax's is one minus it).
      epsilon: added to the variance.
      frozen: the running statistics are used, and never updated, in training too.
      fixed: scale and bias stand among the statistics, not the parameters: nothing trains or decays them.
      updates: how often one batch moves the running statistics (gradient checkpointing in torch moves them twice).
      dtype: of the result; None keeps that of the input.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5
    frozen: bool = False
    fixed: bool = False
    updates: int = 1
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [..., C] -> float [..., C]."""
        channels, axes = x.shape[-1], tuple(range(x.ndim - 1))
        if self.fixed:
            scale = self.variable("batch_stats", "scale", jnp.ones, (channels,), jnp.float32).value
            bias = self.variable("batch_stats", "bias", jnp.zeros, (channels,), jnp.float32).value
        else:
            scale = self.param("scale", nn.initializers.ones_init(), (channels,))
            bias = self.param("bias", nn.initializers.zeros_init(), (channels,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if train and not self.frozen:
            mean = jnp.mean(wide, axes, keepdims=True)
            var = jnp.mean(jnp.square(wide - mean), axes, keepdims=True)
            if not self.is_initializing():
                count = x.size // channels
                keep = (1.0 - self.momentum) ** self.updates
                batch_mean, batch_var = jax.lax.stop_gradient((mean.reshape(-1), var.reshape(-1)))
                unbiased = batch_var * (count / max(count - 1, 1))
                running_mean.value = keep * running_mean.value + (1.0 - keep) * batch_mean
                running_var.value = keep * running_var.value + (1.0 - keep) * unbiased
        else:
            mean = jnp.expand_dims(running_mean.value, axes)
            var = jnp.expand_dims(running_var.value, axes)
        factor = jax.lax.rsqrt(var + self.epsilon) * jnp.expand_dims(scale, axes)
        result = (wide - mean) * factor + jnp.expand_dims(bias, axes)
        return result.astype(self.dtype or x.dtype)


class Frozen(Protocol):
    """What the configuration of a network with batch norms says of them."""

    @property
    def bn_momentum(self) -> float: ...
    @property
    def freeze_bn(self) -> bool: ...
    @property
    def freeze_bn_affine(self) -> bool: ...


def batch_norm(config: Frozen, name: str, *, epsilon: float = 1e-5, updates: int = 1) -> BatchNorm:
    """The batch norm a network's configuration asks for."""
    return BatchNorm(config.bn_momentum, epsilon, config.freeze_bn, config.freeze_bn_affine, updates, name=name)


def _overhang(size: int, window: int, stride: int, padding: int, ceil: bool) -> int:
    """Padding behind the last row: more than `padding` where torch's ceil mode adds a window that hangs over.

    Torch also drops a window that would begin beyond the image; with stride + padding <= window, as everywhere here,
    there is none.
    """
    if not ceil:
        return padding
    windows = -(-(size + 2 * padding - window) // stride) + 1
    return max(padding, (windows - 1) * stride + window - size - padding)


class MaxPool(nn.Module):
    """Max pooling, padded with -inf; `ceil` lets the last window hang over the edge as torch's `ceil_mode` does."""

    window: int
    stride: int
    padding: int = 0
    ceil: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, H', W', C]."""
        pads = [(self.padding, _overhang(n, self.window, self.stride, self.padding, self.ceil)) for n in x.shape[1:3]]
        return nn.max_pool(x, (self.window, self.window), (self.stride, self.stride), pads)


class AveragePool(nn.Module):
    """3x3 averages at stride 1; zeros beyond the edge count, so every sum is divided by 9."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> the same shape."""
        return nn.avg_pool(x, (3, 3), (1, 1), ((1, 1), (1, 1)), count_include_pad=True)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., ECCV 2016): drops a residual branch of a whole sample, rescales the kept ones.

    Off where no key "drop_path" is given.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, ...] -> the same shape."""
        if self.rate == 0.0 or not self.has_rng("drop_path"):
            return x
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(self.make_rng("drop_path"), keep, (x.shape[0],) + (1,) * (x.ndim - 1))
        return jnp.where(kept, x / keep, jnp.zeros((), x.dtype))


def layer_norm(epsilon: float, *, dtype: Dtype, name: str) -> nn.LayerNorm:
    """Layer normalisation over the last axis, statistics in two passes and at least float32."""
    return nn.LayerNorm(epsilon=epsilon, use_fast_variance=False, dtype=dtype, name=name)


def attention(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(d)) v for every head; the softmax in at least float32.

    Args:
      queries: float [B, N, heads, d].
      keys, values: float [B, M, heads, d].

    Returns:
      float [B, N, heads * d].
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scores = jnp.einsum("bnhd,bmhd->bhnm", queries, keys, preferred_element_type=wide)
    weights = jax.nn.softmax(scores * queries.shape[-1] ** -0.5, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("bhnm,bmhd->bnhd", weights, values)
    return mixed.reshape(*mixed.shape[:2], -1)


def compute_dtype(name: str) -> Dtype:
    """What "float32" and "bfloat16" of a configuration mean to a layer; None keeps the dtype of what comes in."""
    return jnp.bfloat16 if name == "bfloat16" else None
