"""Linen layers of backbones and heads, with their initialisers, like PyTorch's; images are NHWC.

XLA's "SAME", which is TensorFlow's, pads strided windows more on the right than on the left;
PyTorch pads both sides equally, so networks from PyTorch give every padding explicitly.
"""

import importlib.util
import math
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer
from jax.experimental.layout import Layout, with_layout_constraint

from dml_jax.backbones.convolution import Padding, Pair, convolve, is_plain, shifts
from dml_jax.errors import ConfigError
from dml_jax.numerics import at_least_float32, product

Pooling = Literal["avg", "max", "avg+max"]  # see `global_pool`


BLOCK = 2**16
CAPACITY = 2**22  # enough for the largest kernels of most networks


@jax.jit
def _draw_normal(key: jax.Array, blocks: int) -> jax.Array:
    """Draws N(0, 1) for the first `blocks` * BLOCK of CAPACITY values; the others are 0."""

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
    distributed table of classes, each device draws its part; a loop would need all of it on each.
    """
    size = math.prod(shape)
    if size > CAPACITY:
        return std * jax.random.normal(key, shape, jnp.float32)
    return _scaled(_draw_normal(key, -(-size // BLOCK)), std, shape)


def normal_init(std: float) -> Initializer:
    """N(0, std^2)."""
    return lambda key, shape, dtype=jnp.float32: normal(key, shape, std).astype(dtype)


def he_fan_out(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """He et al. (2015): std = sqrt(2 / (k k C_out / groups)), for [k, k, C_in / groups, C_out]."""
    depthwise = len(shape) == 4 and shape[2] == 1  # one input channel per group
    fan = math.prod(shape[:-2]) * (1 if depthwise else shape[-1])
    return normal(key, shape, math.sqrt(2 / fan)).astype(dtype)


def he_fan_in(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """He et al. (2015): std = sqrt(2 / (k k C_in)), for a kernel [k, k, C_in, C_out]."""
    return normal(key, shape, math.sqrt(2 / math.prod(shape[:-1]))).astype(dtype)


def uniform_fan_in(inputs: int) -> Initializer:
    """U(±1/sqrt(inputs)), PyTorch's default for kernels and biases of linear layers."""
    b = inputs**-0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -b, b)


class Dense(nn.Module):
    """A linear layer, initialised like torch.nn.Linear by default."""

    features: int
    use_bias: bool = True
    kernel_init: Initializer | None = None  # for [inputs, features]; None: U(±1/sqrt(inputs))
    bias_init: Initializer | None = None  # for [features]; None: U(±1/sqrt(inputs))
    dtype: Dtype | None = None  # computes in this type; None: in that of inputs and parameters

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [..., inputs] -> float [..., features]."""
        default, shape = uniform_fan_in(x.shape[-1]), (x.shape[-1], self.features)
        kernel, bias = self.param("kernel", self.kernel_init or default, shape, jnp.float32), None
        if self.use_bias:
            bias = self.param("bias", self.bias_init or default, (self.features,), jnp.float32)
        x = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)[0]
        # XLA computes the gradient of a product of matrices without transposing copies.
        y = _multiply(x.reshape(-1, x.shape[-1]), kernel)
        y = y if bias is None else with_bias(y, bias)
        return y.reshape(*x.shape[:-1], -1)


def transformer_dense(features: int, *, bias: bool = True, dtype: Dtype | None, name: str) -> Dense:
    """A linear layer as vision transformers initialise it: weights N(0, 0.02^2), biases 0."""
    weights, zeros = normal_init(0.02), nn.initializers.zeros_init()
    return Dense(features, bias, weights, zeros, dtype, name=name)


class Conv(nn.Module):
    """A convolution; the gradient of its kernel is summed in the kernel's type.

    The padding is zero pixels on every side, or TensorFlow's "SAME": ceil(size / stride) outputs.
    """

    features: int
    size: int
    stride: int = 1
    padding: int | Literal["SAME"] = 0
    use_bias: bool = False  # starts at 0
    groups: int = 1
    kernel_init: Initializer = he_fan_out
    dtype: Dtype | None = None  # computes in this type; None: in that of inputs and parameters

    @nn.compact
    def __call__(
        self, x: jax.Array, factor: jax.Array | None = None, shift: jax.Array | None = None
    ) -> jax.Array:
        """float [B, H, W, C] -> float [B, H', W', C'], times a factor [C'], plus a shift [C']."""
        shape = (self.size, self.size, x.shape[-1] // self.groups, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        kernel = kernel if factor is None else kernel * factor.reshape(1, 1, 1, -1)
        x = nn.dtypes.promote_dtype(x, kernel, dtype=self.dtype)[0]
        padding = self.padding if self.padding == "SAME" else ((self.padding, self.padding),) * 2
        if (
            self.size == self.stride > 1
            and not self.padding
            and self.groups == 1
            and not is_plain()
        ):
            y = _convolve_patches(x, kernel)
        else:
            y = convolve(x, kernel, (self.stride, self.stride), padding, self.groups)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
            bias = bias if factor is None else bias * factor
            shift = bias if shift is None else bias + shift
        return y if shift is None else with_bias(y, shift)


def with_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """x [..., C] plus a bias [C], rounded to the type of x; the bias's gradient is not rounded."""
    return (_with_rounded_bias if x.dtype == jnp.bfloat16 else _with_bias)(x, bias)


def _with_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    return x + jnp.expand_dims(bias.astype(x.dtype), tuple(range(x.ndim - 1)))


_with_rounded_bias = jax.custom_vjp(_with_bias)


def _with_bias_backward(bias: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    return grad, grad.astype(bias.dtype).sum(axis=tuple(range(grad.ndim - 1)))


_with_rounded_bias.defvjp(lambda x, bias: (_with_bias(x, bias), bias), _with_bias_backward)


def _convolve_patches(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution [B, H, W, C] -> [B, H // k, W // k, C'] whose stride is the kernel's size k.

    It is one product of patches, because the gradients of a convolution would reach cuDNN as
    convolutions with a padded gradient of mostly zeros: 49 x 49 instead of 7 x 7 cells for k = 8.
    """
    size, (count, height, width, channels) = len(kernel), x.shape
    rows, columns = height // size, width // size
    cells = x[:, : rows * size, : columns * size]
    cells = cells.reshape(count, rows, size, columns, size, channels).swapaxes(2, 3)
    y = _multiply(cells.reshape(count * rows * columns, -1), kernel.reshape(-1, kernel.shape[-1]))
    # Without the constraint, XLA may keep the layout of the images and transpose later products.
    return with_layout_constraint(y, Layout((0, 1))).reshape(count, rows, columns, -1)


def _multiply(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [n, i] times a kernel [i, o], in the type of x; the kernel's gradient is in its own."""
    return _rounded_dense(x, kernel) if x.dtype == jnp.bfloat16 else product("ni,io->no", x, kernel)


@jax.custom_vjp
def _rounded_dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [n, i] times a kernel [i, o], rounded to the type of x; the kernel's gradient is not."""
    return x @ kernel.astype(x.dtype)


def _rounded_dense_backward(
    saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    kernel_gradient = jnp.matmul(x.T, grad, preferred_element_type=kernel.dtype)
    return grad @ kernel.astype(x.dtype).T, kernel_gradient


_rounded_dense.defvjp(lambda x, k: (_rounded_dense(x, k), (x, k)), _rounded_dense_backward)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _standardize(x: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) over the last axis, in two passes."""
    return _standardize_with_factor(x, epsilon)[0]


def _standardize_with_factor(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    """The result, and 1 / sqrt(variance + epsilon): all that derivatives need."""
    centred = x - x.mean(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    return centred * factor, factor


@_standardize.defjvp
def _standardize_jvp(epsilon: float, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    y, factor = _standardize_with_factor(primals[0], epsilon)
    scaled = factor * tangents[0]
    mean, along = (x.mean(axis=-1, keepdims=True) for x in (scaled, scaled * y))
    return y, scaled - mean - y * along


def relu(x: jax.Array) -> jax.Array:
    """ReLU, whose gradient depends on its result only: then nothing else uses its input, and cuDNN
    computes both at the end of a convolution."""
    return nn.relu(x) if is_plain() else _relu(x)


_relu = jax.custom_vjp(nn.relu)


def _relu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (y := nn.relu(x)), y


def _relu_backward(y: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(jax.lax.optimization_barrier(y) > 0, grad, jnp.zeros_like(grad)),)


_relu.defvjp(_relu_forward, _relu_backward)


def gelu(x: jax.Array, *, approximate: bool = False) -> jax.Array:
    """GELU, exact or by tanh. In bfloat16, the gradient recomputes it, which is faster on
    accelerators than to read a second stored array."""
    function = partial(nn.gelu, approximate=approximate)
    return (jax.checkpoint(function) if x.dtype == jnp.bfloat16 else function)(x)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, in at least float32."""

    epsilon: float = 1e-5
    affine: bool = True
    dtype: Dtype | None = None  # the result's; None: the input's

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [..., C] -> the same shape."""
        y = _standardize(at_least_float32(x), self.epsilon)
        if self.affine:
            scale = self.param("scale", nn.initializers.ones_init(), x.shape[-1:], jnp.float32)
            bias = self.param("bias", nn.initializers.zeros_init(), x.shape[-1:], jnp.float32)
            shape = (1,) * (x.ndim - 1) + (-1,)
            y = y * scale.reshape(shape) + bias.reshape(shape)
        return y.astype(self.dtype or x.dtype)


def require_size(fits: bool, images: jax.Array, problem: str) -> None:
    """Raises ConfigError unless a network fits images [B, H, W, 3]."""
    if not fits:
        raise ConfigError(f"images of {images.shape[1]}x{images.shape[2]} pixels: {problem}")


def attention_weights(
    queries: jax.Array,
    keys: jax.Array,
    *,
    scale: float,
    off_by_one: bool = False,
    count: int | None = None,
) -> jax.Array:
    """softmax(scale q k^T) of every head, in at least float32.

    Args:
      queries, keys: float [..., N, heads, d], [..., M, heads, d].
      off_by_one: adds 1 to the denominator of the softmax.
      count: number of keys to use, from the first; None: all.

    Returns:
      [..., heads, N, M]; rows sum to 1, or to less with `off_by_one`.
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scores = scale * product("...nhd,...mhd->...hnm", queries, keys, preferred_element_type=wide)
    if count is not None and count < keys.shape[-3]:
        scores = jnp.where(jnp.arange(keys.shape[-3]) < count, scores, -jnp.inf)
    if not off_by_one:
        return jax.nn.softmax(scores, axis=-1)
    # The 1 acts as one more key with score 0 and value 0.
    top = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1, keepdims=True), 0))
    mass = jnp.exp(scores - top)
    return mass / (mass.sum(axis=-1, keepdims=True) + jnp.exp(-top))


def attend(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Sums of values [..., M, heads, d] with weights [..., heads, N, M] -> [..., N, heads * d]."""
    mixed = product("...hnm,...mhd->...nhd", weights.astype(values.dtype), values)
    return mixed.reshape(*mixed.shape[:-2], -1)


def attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, count: int | None = None
) -> jax.Array:
    """Scaled dot-product attention, softmax(q k^T / sqrt(d)) v, of every head.

    Queries float [..., N, heads, d], keys and values [..., M, heads, d] -> [..., N, heads * d].
    Only the first `count` keys are used. On NVIDIA GPUs, cuDNN's flash attention computes it in
    bfloat16 without storing N x M weights.
    """

    def plain(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        scale = queries.shape[-1] ** -0.5
        return attend(attention_weights(queries, keys, scale=scale, count=count), values)

    width = queries.shape[-1]
    # The plugin can compile for NVIDIA GPUs, even on a machine without one.
    has_cudnn = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
    fits = queries.dtype == jnp.bfloat16 and queries.ndim == 4 and width % 8 == 0 and width <= 128
    if not (fits and has_cudnn):
        return plain(queries, keys, values)
    flash = partial(_flash_attention, keys.shape[1] if count is None else count)
    return jax.lax.platform_dependent(queries, keys, values, cuda=flash, default=plain)


def _flash_attention(
    attended: int, queries: jax.Array, keys: jax.Array, values: jax.Array
) -> jax.Array:
    count, tokens = queries.shape[:2]

    def pad_to_even(x: jax.Array) -> jax.Array:  # cuDNN's gradient needs an even length
        return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))

    arrays = map(pad_to_even, (queries, keys, values))
    lengths: dict[str, Any] = {
        "query_seq_lengths": jnp.full(count, tokens, jnp.int32),
        "key_value_seq_lengths": jnp.full(count, attended, jnp.int32),
    }
    mixed = jax.nn.dot_product_attention(*arrays, **lengths, implementation="cudnn")
    return mixed[:, :tokens].reshape(count, tokens, -1)


def global_pool(features: jax.Array, kind: Pooling) -> jax.Array:
    """Global pooling of a map [B, h, w, K] -> [B, K], in at least float32; "avg+max" adds both."""
    features = at_least_float32(features)
    average = features.mean(axis=(1, 2))
    if kind == "avg":
        return average
    count, _, _, channels = features.shape
    cells = features.reshape(count, -1, channels)
    # By index, not by equality with the maximum: compiled programs may compute the two with
    # different last bits, and the gradient of a maximum that no operand equals is 0 / 0.
    selected = jnp.argmax(cells, axis=1)[:, None, :] == jnp.arange(cells.shape[1])[None, :, None]
    largest = jnp.sum(jnp.where(selected, cells, 0), axis=1)
    return largest if kind == "max" else average + largest


def _padding_after(size: int, window: int, stride: int, padding: int, ceil: bool) -> int:
    """Padding after the last row; more than `padding` if PyTorch's ceil mode adds a window."""
    # PyTorch drops windows that start beyond the image; here, stride + padding <= window.
    if not ceil:
        return padding
    windows = -(-(size + 2 * padding - window) // stride) + 1
    return max(padding, (windows - 1) * stride + window - size - padding)


class MaxPool(nn.Module):
    """Max pooling, padded with -inf; `ceil` is PyTorch's `ceil_mode`."""

    window: int
    stride: int
    padding: int = 0
    ceil: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, H', W', C]."""
        sizes = self.window, self.stride, self.padding
        rows, columns = ((self.padding, _padding_after(n, *sizes, self.ceil)) for n in x.shape[1:3])
        window, strides, pads = (self.window,) * 2, (self.stride,) * 2, (rows, columns)
        plain = partial(nn.max_pool, window_shape=window, strides=strides, padding=pads)
        if is_plain():
            return plain(x)
        shifted = partial(_max_of_shifts, window, strides, pads)
        return jax.lax.platform_dependent(x, cpu=shifted, cuda=shifted, default=plain)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _max_of_shifts(window: Pair, strides: Pair, padding: Padding, x: jax.Array) -> jax.Array:
    """Max pooling by comparing shifted images; on CPUs several times faster than XLA's.

    On GPUs, its gradient fuses with other kernels, while XLA's writes and reads indices.
    """
    return _max_forward(window, strides, padding, x)[0]


def _max_forward(
    window: Pair, strides: Pair, padding: Padding, x: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The maxima of all windows; saves their first positions, counted row by row."""
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
    padded = jax.lax.platform_dependent(
        padded, cpu=jax.lax.optimization_barrier, default=lambda padded: padded
    )
    maxima, *images = shifts(padded, window, strides)
    cells = jnp.zeros(maxima.shape, jnp.int8)
    for cell, pixels in enumerate(images, 1):
        larger = (pixels > maxima) | jnp.isnan(pixels)
        maxima, cells = jnp.where(larger, pixels, maxima), jnp.where(larger, jnp.int8(cell), cells)
    return maxima, (cells, x[:0])  # x[:0] for its shape


def _max_backward(
    window: Pair, strides: Pair, padding: Padding, saved: tuple[jax.Array, ...], grad: jax.Array
) -> tuple[jax.Array]:
    cells, empty = saved

    def padded_shifts(x: jax.Array) -> list[jax.Array]:
        return shifts(jnp.pad(x, ((0, 0), *padding, (0, 0))), window, strides)

    images = jax.ShapeDtypeStruct((len(grad), *empty.shape[1:]), grad.dtype)
    parts = [jnp.where(cells == cell, grad, 0) for cell in range(window[0] * window[1])]
    (gradient,) = jax.linear_transpose(padded_shifts, images)(parts)
    return (gradient,)


_max_of_shifts.defvjp(_max_forward, _max_backward)


class AveragePool(nn.Module):
    """3x3 averages at stride 1; zeros beyond the edge are counted, so sums are divided by 9."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> the same shape."""
        return nn.avg_pool(x, (3, 3), (1, 1), ((1, 1), (1, 1)), count_include_pad=True)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., 2016): drops a branch for some samples, rescales the others.

    Does nothing unless `apply` gets a key named "drop_path".
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, ...] -> the same shape."""
        if self.rate == 0.0 or not self.has_rng("drop_path"):
            return x
        keep, shape = 1.0 - self.rate, (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = jax.random.bernoulli(self.make_rng("drop_path"), keep, shape)
        return jnp.where(mask, x / keep, jnp.zeros((), x.dtype))


def compute_dtype(name: Literal["float32", "bfloat16"]) -> Dtype | None:
    """The `dtype` of layers for the option `dtype`; None keeps the type of the inputs."""
    return jnp.bfloat16 if name == "bfloat16" else None
