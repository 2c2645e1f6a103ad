"""Linen layers shared by backbones and heads, with their initialisers. They match PyTorch's; images
are NHWC.

XLA's "SAME", which is TensorFlow's, pads strided windows more on the right than on the left;
PyTorch pads both sides equally, so networks from PyTorch give every padding explicitly.
"""

import importlib.util
import math
from functools import partial
from typing import Annotated, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer

from dml_jax.backbones.convolution import Padding, Pair, convolve, is_plain, shifts
from dml_jax.config.fields import Fraction, Needs
from dml_jax.config.modules import backbone_is_frozen
from dml_jax.errors import ConfigError
from dml_jax.numerics import at_least_float32, product

Pooling = Literal["avg", "max", "avg+max"]  # of the feature map, see `global_pool`

TRAINED = Needs("a backbone that is trained", lambda c: not backbone_is_frozen(c))
DropRate = Annotated[Fraction, TRAINED]  # of `DropPath`

BLOCK = 2**16
CAPACITY = 2**22  # numbers in the largest kernels of most networks


@jax.jit
def _draw(key: jax.Array, blocks: int) -> jax.Array:
    """N(0, 1) in the first `blocks` * BLOCK of CAPACITY places."""

    def fill(index: jax.Array, values: jax.Array) -> jax.Array:
        block = jax.random.normal(jax.random.fold_in(key, index), (BLOCK,), jnp.float32)
        return jax.lax.dynamic_update_slice(values, block, (index * BLOCK,))

    return jax.lax.fori_loop(0, blocks, fill, jnp.zeros(CAPACITY, jnp.float32))


@partial(jax.jit, static_argnums=2)
def _scaled(values: jax.Array, std: float, shape: tuple[int, ...]) -> jax.Array:
    return std * values[: math.prod(shape)].reshape(shape)


def normal(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """Draws N(0, std^2) of the given shape.

    One compiled loop over blocks serves all shapes up to CAPACITY: compiling a generator for each
    shape of a network takes longer than drawing all its parameters. Of a larger array, such as a
    table of classes that is spread over the devices, each device draws its own part; in a loop, all
    of them would hold and exchange the whole.
    """
    size = math.prod(shape)
    if size > CAPACITY:
        return std * jax.random.normal(key, shape, jnp.float32)
    return _scaled(_draw(key, -(-size // BLOCK)), std, shape)


def normal_init(std: float) -> Initializer:
    """N(0, std^2)."""
    return lambda key, shape, dtype=jnp.float32: normal(key, shape, std).astype(dtype)


def he_fan_out(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """He et al. (2015), "fan out": std = sqrt(2 / (k k C_out / groups)), for a kernel [k, k, C_in /
    groups, C_out].

    A kernel with one input channel per group is depthwise.
    """
    depthwise = len(shape) == 4 and shape[2] == 1
    fan = math.prod(shape[:-2]) * (1 if depthwise else shape[-1])
    return normal(key, shape, math.sqrt(2 / fan)).astype(dtype)


def he_fan_in(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """He et al. (2015), "fan in", for a kernel [k, k, C_in, C_out]: std = sqrt(2 / (k k C_in))."""
    return normal(key, shape, math.sqrt(2 / math.prod(shape[:-1]))).astype(dtype)


def uniform_fan_in(inputs: int) -> Initializer:
    """U(±1/sqrt(inputs)), PyTorch's default for kernels and biases of linear layers."""
    bound = inputs**-0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
        key, shape, dtype, -bound, bound
    )


class Dense(nn.Module):
    """A linear layer, initialised like torch.nn.Linear by default."""

    features: int
    use_bias: bool = True
    # kernel_init, bias_init: initialise [inputs, features] and [features]; None for
    # U(±1/sqrt(inputs))
    kernel_init: Initializer | None = None
    bias_init: Initializer | None = None
    dtype: Dtype | None = None  # of the computation; None for the type of inputs and parameters

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [..., inputs] -> float [..., features]."""
        default = uniform_fan_in(x.shape[-1])
        kernel = self.param(
            "kernel", self.kernel_init or default, (x.shape[-1], self.features), jnp.float32
        )
        bias = (
            self.param("bias", self.bias_init or default, (self.features,), jnp.float32)
            if self.use_bias
            else None
        )
        x = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)[0]
        # As a product of matrices, whose gradient with respect to the kernel XLA computes without
        # transposing copies.
        rows = x.reshape(-1, x.shape[-1])
        y = (
            _rounded_dense(rows, kernel)
            if x.dtype == jnp.bfloat16
            else product("ni,io->no", rows, kernel)
        )
        y = y if bias is None else with_bias(y, bias)
        return y.reshape(*x.shape[:-1], -1)


def transformer_dense(features: int, *, bias: bool = True, dtype: Dtype | None, name: str) -> Dense:
    """A linear layer as vision transformers initialise it: weights N(0, 0.02^2), biases 0."""
    zeros = nn.initializers.zeros_init()
    return Dense(
        features, bias, kernel_init=normal_init(0.02), bias_init=zeros, dtype=dtype, name=name
    )


class Conv(nn.Module):
    """A convolution with a kernel of `size` x `size`, which keeps its type; its gradient is summed
    in this type.

    The padding is pixels of zeros on every side, or "SAME", as TensorFlow pads to ceil(size /
    stride) outputs.
    """

    features: int
    size: int
    stride: int = 1
    padding: int | Literal["SAME"] = 0
    use_bias: bool = False  # starts at 0
    groups: int = 1
    kernel_init: Initializer = he_fan_out
    dtype: Dtype | None = None  # of the computation; None for the type of inputs and parameters

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, H', W', C']."""
        shape = (self.size, self.size, x.shape[-1] // self.groups, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        x = nn.dtypes.promote_dtype(x, kernel, dtype=self.dtype)[0]
        padding = self.padding if self.padding == "SAME" else ((self.padding, self.padding),) * 2
        y = convolve(x, kernel, (self.stride, self.stride), padding, self.groups)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
            y = (y + bias.reshape(1, 1, 1, -1)).astype(y.dtype)
        return y


@jax.custom_vjp
def with_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """x [n, o] plus a bias [o], rounded to the type of x; the bias's gradient is not, nor are its
    sums."""
    return x + bias[None].astype(x.dtype)


def _with_bias_backward(bias: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    return grad, grad.astype(bias.dtype).sum(axis=0)


with_bias.defvjp(lambda x, bias: (with_bias(x, bias), bias), _with_bias_backward)


@jax.custom_vjp
def _rounded_dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [n, i] times the kernel [i, o], rounded to the type of x; the kernel's gradient is not, nor
    are its sums."""
    return x @ kernel.astype(x.dtype)


def _rounded_dense_backward(
    saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    return grad @ kernel.astype(x.dtype).T, jnp.matmul(
        x.T, grad, preferred_element_type=kernel.dtype
    )


_rounded_dense.defvjp(
    lambda x, kernel: (_rounded_dense(x, kernel), (x, kernel)), _rounded_dense_backward
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _standardized(x: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) over the last axis, with the variance in a second
    pass."""
    return _standardized_forward(x, epsilon)[0]


def _standardized_forward(
    x: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    centred = x - x.mean(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    return centred * factor, (centred * factor, factor)


def _standardized_backward(
    epsilon: float, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array]:
    y, factor = saved
    return (
        factor
        * (grad - grad.mean(axis=-1, keepdims=True) - y * (grad * y).mean(axis=-1, keepdims=True)),
    )


_standardized.defvjp(_standardized_forward, _standardized_backward)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, in at least float32."""

    epsilon: float = 1e-5
    affine: bool = True
    dtype: Dtype | None = None  # of the result; None: as the input

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [..., C] -> the same shape."""
        y = _standardized(at_least_float32(x), self.epsilon)
        if self.affine:
            scale = self.param("scale", nn.initializers.ones_init(), x.shape[-1:], jnp.float32)
            bias = self.param("bias", nn.initializers.zeros_init(), x.shape[-1:], jnp.float32)
            shape = (1,) * (x.ndim - 1) + (-1,)
            y = y * scale.reshape(shape) + bias.reshape(shape)
        return y.astype(self.dtype or x.dtype)


def require_size(fits: bool, images: jax.Array, problem: str) -> None:
    """ConfigError unless a network fits images [B, H, W, 3]."""
    if not fits:
        raise ConfigError(f"images of {images.shape[1]}x{images.shape[2]} pixels: {problem}")


def attention_weights(
    queries: jax.Array, keys: jax.Array, *, scale: float, off_by_one: bool = False
) -> jax.Array:
    """softmax(scale q k^T) of every head, in at least float32.

    Args:
      queries, keys: float [..., N, heads, d], [..., M, heads, d].
      off_by_one: adds 1 to the denominator of the softmax.

    Returns:
      [..., heads, N, M]; rows sum to 1, or to less with `off_by_one`.
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scores = scale * product("...nhd,...mhd->...hnm", queries, keys, preferred_element_type=wide)
    if not off_by_one:
        return jax.nn.softmax(scores, axis=-1)
    # The 1 is one more key, with score 0 and no value.
    top = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1, keepdims=True), 0))
    mass = jnp.exp(scores - top)
    return mass / (mass.sum(axis=-1, keepdims=True) + jnp.exp(-top))


def attend(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Weighted sums of values: weights [..., heads, N, M], values [..., M, heads, d] -> [..., N,
    heads * d]."""
    mixed = product("...hnm,...mhd->...nhd", weights.astype(values.dtype), values)
    return mixed.reshape(*mixed.shape[:-2], -1)


def attention(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Scaled dot-product attention, softmax(q k^T / sqrt(d)) v, of every head: float [..., N, heads
    * d].

    Queries are float [..., N, heads, d], keys and values [..., M, heads, d]. On NVIDIA GPUs,
    cuDNN's flash attention computes it in bfloat16, which never stores the N x M weights.
    """

    def plain(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        return attend(attention_weights(queries, keys, scale=queries.shape[-1] ** -0.5), values)

    width = queries.shape[-1]
    # Whether JAX can compile for NVIDIA GPUs; this machine need not have one.
    has_cudnn = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
    if (
        queries.dtype != jnp.bfloat16
        or queries.ndim != 4
        or width % 8
        or width > 128
        or not has_cudnn
    ):
        return plain(queries, keys, values)
    return jax.lax.platform_dependent(queries, keys, values, cuda=_flash_attention, default=plain)


def _flash_attention(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    count, tokens = queries.shape[:2]

    def even(x: jax.Array) -> jax.Array:  # as cuDNN's gradient demands
        return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))

    lengths = [jnp.full(count, x.shape[1], jnp.int32) for x in (queries, keys)]
    mixed = jax.nn.dot_product_attention(
        *map(even, (queries, keys, values)),
        query_seq_lengths=lengths[0],
        key_value_seq_lengths=lengths[1],
        implementation="cudnn",
    )
    return mixed[:, :tokens].reshape(count, tokens, -1)


def global_pool(features: jax.Array, kind: Pooling) -> jax.Array:
    """Global pooling of a feature map [B, h, w, K] -> [B, K], in at least float32; "avg+max" is the
    sum of both."""
    features = at_least_float32(features)
    average = features.mean(axis=(1, 2))
    if kind == "avg":
        return average
    count, _, _, channels = features.shape
    cells = features.reshape(count, -1, channels)
    # Selected by index, not by equality with the maximum: a compiler may compute the two to
    # different last bits, and the gradient of a maximum that no operand equals is 0 / 0.
    selected = jnp.argmax(cells, axis=1)[:, None, :] == jnp.arange(cells.shape[1])[None, :, None]
    largest = jnp.sum(jnp.where(selected, cells, 0), axis=1)
    return largest if kind == "max" else average + largest


def _overhang(size: int, window: int, stride: int, padding: int, ceil: bool) -> int:
    """Padding after the last row, more than `padding` where PyTorch's ceil mode adds a window."""
    # PyTorch drops a window that would start beyond the image; none does, as here stride + padding
    # <= window.
    if not ceil:
        return padding
    windows = -(-(size + 2 * padding - window) // stride) + 1
    return max(padding, (windows - 1) * stride + window - size - padding)


class MaxPool(nn.Module):
    """Max pooling, padded with -inf; `ceil` lets the last window hang over the edge like PyTorch's
    `ceil_mode`."""

    window: int
    stride: int
    padding: int = 0
    ceil: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, H', W', C]."""
        pads = [
            (self.padding, _overhang(n, self.window, self.stride, self.padding, self.ceil))
            for n in x.shape[1:3]
        ]
        window, strides, (rows, columns) = (
            (self.window, self.window),
            (self.stride, self.stride),
            pads,
        )
        plain = partial(nn.max_pool, window_shape=window, strides=strides, padding=pads)
        if is_plain():
            return plain(x)
        on_cpu = partial(_max_of_shifts, window, strides, (rows, columns))
        return jax.lax.platform_dependent(x, cpu=on_cpu, default=plain)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _max_of_shifts(window: Pair, strides: Pair, padding: Padding, x: jax.Array) -> jax.Array:
    """Max pooling by comparing shifted images, on CPUs several times as fast as XLA's with its
    gradient."""
    return _max_forward(window, strides, padding, x)[0]


def _max_forward(
    window: Pair, strides: Pair, padding: Padding, x: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The maxima of all windows; saved are the cells of the windows, counted row by row, where they
    are first."""
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
    maxima, *others = shifts(jax.lax.optimization_barrier(padded), window, strides)
    cells = jnp.zeros(maxima.shape, jnp.int8)
    for cell, pixels in enumerate(others, 1):
        larger = (pixels > maxima) | jnp.isnan(pixels)
        maxima, cells = jnp.where(larger, pixels, maxima), jnp.where(larger, jnp.int8(cell), cells)
    return maxima, (cells, x[:0])  # whose shape is needed


def _max_backward(
    window: Pair,
    strides: Pair,
    padding: Padding,
    saved: tuple[jax.Array, jax.Array],
    grad: jax.Array,
) -> tuple[jax.Array]:
    cells, none = saved

    def moved(x: jax.Array) -> list[jax.Array]:
        return shifts(jnp.pad(x, ((0, 0), *padding, (0, 0))), window, strides)

    images = jax.ShapeDtypeStruct((len(grad), *none.shape[1:]), grad.dtype)
    parts = [jnp.where(cells == cell, grad, 0) for cell in range(window[0] * window[1])]
    (gradient,) = jax.linear_transpose(moved, images)(parts)
    return (gradient,)


_max_of_shifts.defvjp(_max_forward, _max_backward)


class AveragePool(nn.Module):
    """3x3 averages at stride 1; zeros beyond the edge count, so every sum is divided by 9."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> the same shape."""
        return nn.avg_pool(x, (3, 3), (1, 1), ((1, 1), (1, 1)), count_include_pad=True)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., ECCV 2016): drops a residual branch for whole samples and
    rescales the others.

    Does nothing unless `apply` gets a key named "drop_path".
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, ...] -> the same shape."""
        if self.rate == 0.0 or not self.has_rng("drop_path"):
            return x
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(
            self.make_rng("drop_path"), keep, (x.shape[0],) + (1,) * (x.ndim - 1)
        )
        return jnp.where(kept, x / keep, jnp.zeros((), x.dtype))


def compute_dtype(name: Literal["float32", "bfloat16"]) -> Dtype | None:
    """The `dtype` of layers for a configuration's "float32" or "bfloat16"; None keeps the type of
    its inputs."""
    return jnp.bfloat16 if name == "bfloat16" else None
