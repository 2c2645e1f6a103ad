"""Linen layers shared by backbones and heads. They match PyTorch's to rounding; images are NHWC.

XLA's 'SAME' pads strided windows more on the right than on the left, PyTorch pads both sides equally, so every padding
here is explicit.
"""

from functools import partial
from typing import Literal, Protocol, assert_never

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer, PrecisionLike

from dml_jax.backbones.convolution import conv_general_dilated
from dml_jax.backbones.initializers import he_fan_out, normal_init, uniform_fan_in
from dml_jax.losses.safe_norms import at_least_float32
from dml_jax.options.methods import Pooling


class Dense(nn.Module):
    """A linear layer, initialised like torch.nn.Linear unless told otherwise.

    Attributes:
      features: number of outputs.
      use_bias: adds a bias.
      kernel_init: of kernel [inputs, features]; None for U(±1/sqrt(inputs)).
      bias_init: None for U(±1/sqrt(inputs)).
      dtype: of the computation; None for that of inputs and parameters.
    """

    features: int
    use_bias: bool = True
    kernel_init: Initializer | None = None
    bias_init: Initializer | None = None
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [..., inputs] -> float [..., features]."""
        default = uniform_fan_in(x.shape[-1])
        kernel = self.param("kernel", self.kernel_init or default, (x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", self.bias_init or default, (self.features,), jnp.float32) if self.use_bias else None
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = x @ kernel
        return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))


def transformer_dense(features: int, *, dtype: Dtype | None, name: str) -> Dense:
    """A linear layer as vision transformers initialise it: weights N(0, 0.02^2), biases 0."""
    return Dense(
        features, kernel_init=normal_init(0.02), bias_init=nn.initializers.zeros_init(), dtype=dtype, name=name
    )


def conv(
    channels: int,
    size: int,
    stride: int = 1,
    *,
    padding: int = 0,
    bias: bool = False,
    groups: int = 1,
    dtype: Dtype | None,
    name: str,
    kernel_init: Initializer = he_fan_out,
) -> nn.Conv:
    """A square convolution with the same padding on all four sides.

    Args:
      channels: number of outputs.
      size: side of the kernel.
      stride: in both directions.
      padding: pixels of zeros on every side.
      bias: adds one.
      groups: of channels that do not mix.
      dtype: of the computation; None for that of inputs and parameters.
      name: of the module.
      kernel_init: of the kernel; biases start at 0.
    """
    return nn.Conv(
        channels,
        (size, size),
        (stride, stride),
        padding=((padding, padding), (padding, padding)),
        use_bias=bias,
        feature_group_count=groups,
        dtype=dtype,
        kernel_init=kernel_init,
        conv_general_dilated=conv_general_dilated,
        name=name,
    )


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def standardize(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Batch normalisation with the statistics of the batch, over all but the last axis.

    Mean and variance take one pass over x. E[d^2] - E[d]^2 of d = x - s cancels when the mean is far from s, so s is
    the mean of the first of the B samples: then E[d]^2 <= B var, and the variance loses at most log2(B) bits however
    large the mean is.

    Args:
      x: float [B, ..., C].
      scale, bias: float [C].
      epsilon: added to the variance.

    Returns:
      (result [B, ..., C], mean [C], biased variance [C]); gradients flow through the result only.
    """
    rows = x.reshape(-1, x.shape[-1])
    near = rows[: len(rows) // len(x)].mean(axis=0)
    offsets = rows - near[None]
    offset = offsets.mean(axis=0)
    var = jnp.maximum(jnp.square(offsets).mean(axis=0) - jnp.square(offset), 0.0)
    mean = near + offset
    result = (rows - mean[None]) * (jax.lax.rsqrt(var + epsilon) * scale)[None] + bias[None]
    return result.reshape(x.shape), mean, var


def _standardize_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]:
    result, mean, var = standardize(x, scale, bias, epsilon)
    return (result, mean, var), (x, scale, mean, jax.lax.rsqrt(var + epsilon))


def _standardize_backward(
    _: float, saved: tuple[jax.Array, ...], gradients: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, mean, factor = saved
    grad, centred = (rows.reshape(-1, x.shape[-1]) for rows in (gradients[0], x))
    centred = centred - mean[None]
    bias_grad = grad.sum(axis=0)
    scale_grad = (grad * (centred * factor[None])).sum(axis=0)
    through_statistics = (bias_grad[None] + centred * (factor * scale_grad)[None]) / len(grad)
    x_grad = (scale * factor)[None] * (grad - through_statistics)
    return x_grad.reshape(x.shape), scale_grad, bias_grad


standardize.defvjp(_standardize_forward, _standardize_backward)


class BatchNorm(nn.Module):
    """Batch normalisation over all but the last axis, like torch.nn.BatchNorm1d and BatchNorm2d.

    Normalises with the biased variance and keeps the unbiased one. Statistics are computed in at least float32.

    Attributes:
      momentum: weight of the new batch in the running statistics (PyTorch's convention; Flax's is one minus it).
      epsilon: added to the variance.
      frozen: uses the running statistics in training too, and never updates them.
      fixed: keeps scale and bias among the statistics instead of the parameters, so nothing trains or decays them.
      updates: how often one batch updates the running statistics (gradient checkpointing in PyTorch does it twice).
      use_bias: adds a learned bias.
      dtype: of the result; None for that of the input.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5
    frozen: bool = False
    fixed: bool = False
    updates: int = 1
    use_bias: bool = True
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [..., C] -> float [..., C]."""
        channels = x.shape[-1]
        bias = jnp.zeros((channels,), jnp.float32)
        if self.fixed:
            scale = self.variable("batch_stats", "scale", jnp.ones, (channels,), jnp.float32).value
            bias = self.variable("batch_stats", "bias", jnp.zeros, (channels,), jnp.float32).value
        else:
            scale = self.param("scale", nn.initializers.ones_init(), (channels,), jnp.float32)
            if self.use_bias:
                bias = self.param("bias", nn.initializers.zeros_init(), (channels,), jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        wide = at_least_float32(x)
        if train and not self.frozen:
            result, mean, var = standardize(wide, scale, bias, self.epsilon)
            if not self.is_initializing():
                count = x.size // channels
                keep = (1.0 - self.momentum) ** self.updates
                batch_mean, batch_var = jax.lax.stop_gradient((mean, var))
                unbiased = batch_var * (count / max(count - 1, 1))
                for running, new in ((running_mean, batch_mean), (running_var, unbiased)):
                    running.value = (keep * running.value + (1.0 - keep) * new).astype(running.value.dtype)
        else:
            mean, factor, bias = (
                jnp.expand_dims(v, tuple(range(x.ndim - 1)))
                for v in (running_mean.value, jax.lax.rsqrt(running_var.value + self.epsilon) * scale, bias)
            )
            result = (wide - mean) * factor + bias
        return result.astype(self.dtype or x.dtype)


class BatchNormOptions(Protocol):
    """The options of a network's configuration that concern batch normalisation."""

    @property
    def bn_momentum(self) -> float: ...
    @property
    def freeze_bn(self) -> bool: ...
    @property
    def freeze_bn_affine(self) -> bool: ...


def batch_norm(config: BatchNormOptions, name: str, *, epsilon: float = 1e-5, updates: int = 1) -> BatchNorm:
    """A batch normalisation with the options of a network's configuration."""
    return BatchNorm(config.bn_momentum, epsilon, config.freeze_bn, config.freeze_bn_affine, updates, name=name)


def layer_norm(
    epsilon: float = 1e-5, *, affine: bool = True, dtype: Dtype | None = None, name: str | None = None
) -> nn.LayerNorm:
    """Layer normalisation over the last axis, with statistics in two passes and at least float32.

    Args:
      epsilon: added to the variance.
      affine: learns a scale and a bias.
      dtype: of the computation; None for that of inputs and parameters.
      name: of the module.
    """
    return nn.LayerNorm(
        epsilon=epsilon, use_scale=affine, use_bias=affine, use_fast_variance=False, dtype=dtype, name=name
    )


def attention_weights(
    queries: jax.Array,
    keys: jax.Array,
    *,
    scale: float,
    off_by_one: bool = False,
    precision: PrecisionLike = None,
) -> jax.Array:
    """softmax(scale q k^T) of every head, in at least float32.

    Args:
      queries: float [..., N, heads, d].
      keys: float [..., M, heads, d].
      scale: multiplies the products.
      off_by_one: adds 1 to the denominator of the softmax.
      precision: of the products.

    Returns:
      [..., heads, N, M]; rows sum to 1, or to less with `off_by_one`.
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scores = jnp.einsum("...nhd,...mhd->...hnm", queries, keys, preferred_element_type=wide, precision=precision)
    scores = scores * scale
    if not off_by_one:
        return jax.nn.softmax(scores, axis=-1)
    # The 1 is one more key, with score 0 and no value.
    top = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1, keepdims=True), 0))
    mass = jnp.exp(scores - top)
    return mass / (mass.sum(axis=-1, keepdims=True) + jnp.exp(-top))


def attend(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Weighted sums of values: weights [..., heads, N, M], values [..., M, heads, d] -> [..., N, heads * d]."""
    mixed = jnp.einsum("...hnm,...mhd->...nhd", weights.astype(values.dtype), values)
    return mixed.reshape(*mixed.shape[:-2], -1)


def attention(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Scaled dot-product attention, softmax(q k^T / sqrt(d)) v, of every head.

    Args:
      queries: float [..., N, heads, d].
      keys, values: float [..., M, heads, d].

    Returns:
      float [..., N, heads * d].
    """
    return attend(attention_weights(queries, keys, scale=queries.shape[-1] ** -0.5), values)


def global_pool(features: jax.Array, kind: Pooling) -> jax.Array:
    """Global pooling of a feature map [B, h, w, K] -> [B, K], in at least float32; "avg+max" is the sum of both."""
    features = at_least_float32(features)
    average = features.mean(axis=(1, 2))
    if kind == "avg":
        return average
    count, _, _, channels = features.shape
    cells = features.reshape(count, -1, channels)
    # Selected by index, not by equality with the maximum: a compiler may compute the two to different last bits, and
    # the gradient of a maximum that no operand equals is 0 / 0.
    selected = jnp.argmax(cells, axis=1)[:, None, :] == jnp.arange(cells.shape[1])[None, :, None]
    largest = jnp.sum(jnp.where(selected, cells, 0), axis=1)
    return largest if kind == "max" else average + largest


def _overhang(size: int, window: int, stride: int, padding: int, ceil: bool) -> int:
    """Padding after the last row, more than `padding` where PyTorch's ceil mode adds a window that hangs over.

    PyTorch also drops a window that would start beyond the image; with stride + padding <= window, as everywhere here,
    there is none.
    """
    if not ceil:
        return padding
    windows = -(-(size + 2 * padding - window) // stride) + 1
    return max(padding, (windows - 1) * stride + window - size - padding)


class MaxPool(nn.Module):
    """Max pooling, padded with -inf; `ceil` lets the last window hang over the edge like PyTorch's `ceil_mode`."""

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
    """Stochastic depth (Huang et al., ECCV 2016): drops a residual branch for whole samples and rescales the others.

    Does nothing unless `apply` gets a key named "drop_path".
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


def compute_dtype(name: Literal["float32", "bfloat16"]) -> Dtype | None:
    """The `dtype` of layers for a configuration's "float32" or "bfloat16"; None keeps that of inputs and parameters."""
    match name:
        case "float32":
            return None
        case "bfloat16":
            return jnp.bfloat16
        case _:
            assert_never(name)
