"""Convolutions and batch normalisation against their definitions in NumPy, in float64."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.lib.stride_tricks import sliding_window_view

from dml_jax.backbones.batch_norm import BatchNorm, standardize
from dml_jax.backbones.layers import Conv, MaxPool, relu
from dml_jax.lab import compilation


class Case(NamedTuple):
    side: int
    channels: int
    size: int
    stride: int
    groups: int = 1
    same: bool = False  # as TensorFlow pads, not equally on all sides
    padded: bool = True


CASES = {
    "1x1": Case(6, 5, 1, 1),
    "1x1, stride 2": Case(7, 5, 1, 2),
    "3x3": Case(6, 5, 3, 1),
    "3x3, stride 2, odd": Case(7, 4, 3, 2),
    "3x3, stride 2, even": Case(8, 4, 3, 2),
    "3x3, many channels": Case(5, 130, 3, 2),
    "7x7, stride 2": Case(12, 3, 7, 2),
    "3x3, stride 2, more after": Case(7, 4, 3, 2, same=True),
    "2x2, one channel": Case(8, 1, 2, 1),
    "2x2, one channel, stride 2, more after": Case(7, 1, 2, 2, same=True),
    "patches": Case(8, 3, 4, 4, padded=False),
    "patches, more pixels than in patches": Case(10, 3, 4, 4, padded=False),
    "groups": Case(6, 4, 3, 1, groups=2),
    "depthwise, wide": Case(30, 6, 3, 1, groups=6),
    "depthwise, stride beyond the kernel": Case(7, 6, 1, 2, groups=6),
}
for size, stride, same in itertools.product((3, 5), (1, 2), (False, True)):
    name = f"depthwise, {size}x{size}, stride {stride}{', more after' if same else ''}"
    CASES[name] = Case(8, 6, size, stride, 6, same)


def padding(side: int, case: Case) -> tuple[int, int]:
    if not case.padded:
        return 0, 0
    if not case.same:
        return case.size // 2, case.size // 2
    total = max((-(-side // case.stride) - 1) * case.stride + case.size - side, 0)
    return total // 2, total - total // 2


def convolve(x: np.ndarray, kernel: np.ndarray, case: Case) -> np.ndarray:
    """The definition: every output is the sum of the products of a window and the kernel."""
    padded = np.pad(x, ((0, 0), padding(x.shape[1], case), padding(x.shape[2], case), (0, 0)))
    windows = sliding_window_view(padded, (case.size, case.size), (1, 2))
    windows = windows[:, :: case.stride, :: case.stride]
    shares = zip(np.split(windows, case.groups, 3), np.split(kernel, case.groups, 3), strict=True)
    return np.concatenate([np.einsum("bhwcij,ijcd->bhwd", x, k) for x, k in shares], 3)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_convolution(case: Case) -> None:
    rng = np.random.default_rng(0)
    pad = "SAME" if case.same else padding(case.side, case)[0]
    options = {"padding": pad, "groups": case.groups, "dtype": None, "name": "conv"}
    layer = Conv(6, case.size, case.stride, **options)
    x = rng.normal(size=(2, case.side, case.side + 1, case.channels)).astype(np.float32)
    shape = case.size, case.size, case.channels // case.groups, 6
    kernel = rng.normal(size=shape).astype(np.float32)
    expected = convolve(np.float64(x), np.float64(kernel), case)
    grad = rng.normal(size=expected.shape).astype(np.float32)

    @jax.jit
    def with_gradients(x: jax.Array, kernel: jax.Array, grad: jax.Array) -> tuple[jax.Array, ...]:
        apply = lambda x, kernel: layer.apply({"params": {"kernel": kernel}}, x)  # noqa: E731
        result, pull = jax.vjp(apply, x, kernel)
        return result, *pull(grad)

    result, x_grad, kernel_grad = map(np.float64, with_gradients(x, kernel, grad))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)

    # The map is linear in x and in the kernel, so gradients are defined by <y', conv(v)> = <gradient, v> for all v.
    for _ in range(5):
        v, k = rng.normal(size=x.shape), rng.normal(size=kernel.shape)
        found = (x_grad * v).sum(), (kernel_grad * k).sum()
        expected = [(grad * convolve(*pair, case)).sum() for pair in ((v, kernel), (x, k))]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


def test_depthwise_convolutions_on_a_cpu_are_not_left_to_xla() -> None:
    layer = Conv(6, 3, 2, padding="SAME", groups=6, dtype=None, name="conv")
    arrays = np.zeros((2, 8, 8, 6)), np.zeros((3, 3, 1, 6))
    total = lambda x, kernel: layer.apply({"params": {"kernel": kernel}}, x).sum()  # noqa: E731
    given = jax.device_put(arrays, jax.devices("cpu")[0])
    program = jax.jit(jax.grad(total, (0, 1))).lower(*given).compile()
    assert "convolution(" not in program.as_text()


@pytest.mark.parametrize("mean", [0.0, 3e4], ids=["centred", "far from 0"])
@pytest.mark.parametrize(
    ("shape", "devices"), [((8, 5, 4, 6), 1), ((8, 5, 4, 6), 8), ((64, 6), 1)], ids=["feature map", "spread", "vectors"]
)
def test_batch_statistics(shape: tuple[int, ...], devices: int, mean: float) -> None:
    """Devices exchange them once forwards and once backwards."""
    rng = np.random.default_rng(1)
    x = (mean + rng.normal(size=shape)).astype(np.float32)
    x[0] += 30  # the first sample is an outlier
    scale, bias = rng.normal(size=(2, 6)).astype(np.float32)

    def reference(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        axes = tuple(range(x.ndim - 1))
        return (x - x.mean(axes)) / np.sqrt(x.var(axes) + 1e-5) * scale + bias

    inputs = [np.float64(v) for v in (x, scale, bias)]
    grad = rng.normal(size=shape)

    @jax.jit
    def with_gradients(grad: jax.Array, *values: jax.Array) -> Any:
        spread = mesh if devices > 1 else None
        found, pull = jax.vjp(lambda *v: standardize(*v, None, 1e-5, spread), *values)
        return found, pull((grad, jnp.zeros(6), jnp.zeros(6)))

    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))
    arguments = jax.device_put((np.float32(grad), x), NamedSharding(mesh, PartitionSpec("data")))
    (result, found_mean, found_var), gradients = with_gradients(*arguments, scale, bias)
    text = with_gradients.lower(*arguments, scale, bias).compile().as_text()
    sent = compilation.operations(text)["collectives"]
    exchanged = {name: each["count"] for name, each in sent.items()}
    assert exchanged == ({"all-gather f32": 1, "all-reduce f32": 1} if devices > 1 else {})
    rows = inputs[0].reshape(-1, 6)
    np.testing.assert_allclose(found_mean, rows.mean(0), rtol=1e-6, atol=1e-5)
    rounding = len(x) * 2.0**-20  # float32's, and log2(B) bits more
    np.testing.assert_allclose(found_var, rows.var(0), rtol=rounding)
    # float32 stores a mean of 3e4 to 1e-3; the spread is about 10
    atol = 1e-5 if mean == 0 else 2e-3
    np.testing.assert_allclose(result, reference(*inputs), rtol=rounding, atol=atol)

    for index, gradient in enumerate(gradients):
        step = rng.normal(size=inputs[index].shape)
        ends = []
        for h in (-1e-4, 1e-4):
            moved = [v + h * step if i == index else v for i, v in enumerate(inputs)]
            ends.append((grad * reference(*moved)).sum())
        found = (np.float64(gradient) * step).sum()
        np.testing.assert_allclose(found, (ends[1] - ends[0]) / 2e-4, rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("x64")
def test_gradient_with_running_statistics() -> None:
    """As JAX's of the formula."""
    rng = np.random.default_rng(1)
    x, grad = rng.normal(size=(2, 8, 5, 4, 6))
    scale, bias, mean, var = rng.uniform(1, 2, (4, 1, 1, 1, 6))

    def reference(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        return (x - mean) / np.sqrt(var + 1e-5) * scale + bias

    def ours(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        return standardize(x, scale.ravel(), bias.ravel(), (mean.ravel(), var.ravel()), 1e-5)[0]

    @partial(jax.jit, static_argnums=0)
    def with_gradients(way: Callable[..., jax.Array], *inputs: jax.Array) -> list[jax.Array]:
        result, pull = jax.vjp(way, *inputs)
        return [result, *pull(grad)]

    both = (with_gradients(way, x, scale, bias) for way in (ours, reference))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), *both)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("groups", "bias"), [(1, False), (1, True), (6, False)])
def test_running_statistics_go_into_the_kernel(groups: int, bias: bool) -> None:
    """Values and gradients are those of the convolution and the formula after it."""
    rng = np.random.default_rng(2)
    conv = partial(Conv, 6, 3, 2, padding=1, use_bias=bias, groups=groups)
    x, kernel = rng.normal(size=(8, 7, 5, 6)), rng.normal(size=(3, 3, 6 // groups, 6))
    shift, scale, offset, mean, var = rng.uniform(1, 2, (5, 6))
    params = {"conv": {"kernel": kernel} | ({"bias": shift} if bias else {}), "bn": {"scale": scale, "bias": offset}}
    weights = rng.normal(size=(8, 4, 3, 6))

    def reference(params: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        more = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
        pads, conv, bn = ((1, 1), (1, 1)), params["conv"], params["bn"]
        y = jax.lax.conv_general_dilated(x, conv["kernel"], (2, 2), pads, **more)
        factor, wide = bn["scale"] / np.sqrt(var + 1e-5), (None, None, None)
        centred = y + conv.get("bias", np.zeros(6))[wide] - mean[wide]
        return centred * factor[wide] + bn["bias"][wide]

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return BatchNorm(frozen=True, name="bn")(x, True, conv(name="conv"))

    def ours(params: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        stats = {"bn": {"mean": mean, "var": var}}
        return Network().apply({"params": params, "batch_stats": stats}, x)

    found = []
    for way in (ours, reference):
        total = lambda p, x, way=way: jnp.sum(weights * way(p, x))  # noqa: E731
        found.append(jax.jit(jax.value_and_grad(total, (0, 1)))(params, x))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), *found)


def test_relu() -> None:
    """To the bit, values and gradients are those of max(x, 0), with 0 at 0 and at NaN."""
    x = np.array([-1, -0.0, 0, 1e-30, 2, np.inf, np.nan], np.float32)
    weights = np.arange(1, 8, dtype=np.float32)
    found, pullback = jax.vjp(relu, x)
    np.testing.assert_array_equal(found, np.maximum(x, 0))
    np.testing.assert_array_equal(pullback(weights)[0], np.where(x > 0, weights, 0))


@pytest.mark.parametrize("case", [(3, 2, 1, False), (3, 2, 0, True), (2, 2, 0, True), (3, 1, 1, True)])
@pytest.mark.parametrize("side", [7, 8])
def test_max_pooling(case: tuple[int, int, int, bool], side: int) -> None:
    """The first of several equal pixels of a window gets the gradient, as in PyTorch; no maximum hides a NaN."""
    window, stride, padding, _ = case
    rng = np.random.default_rng(side)
    x = np.maximum(rng.integers(-2, 3, (2, side, side, 3)), 0).astype(np.float32)  # with many ties
    x[1, 3, 3, 1] = np.nan
    found, pullback = jax.jit(lambda x: jax.vjp(lambda x: MaxPool(*case).apply({}, x), x))(x)
    weights = rng.normal(size=found.shape).astype(np.float32)
    expected, gradient = np.zeros(found.shape, np.float32), np.zeros(x.shape)
    for b, i, j, c in np.ndindex(found.shape):
        top, left = i * stride - padding, j * stride - padding
        rows, columns = slice(max(top, 0), top + window), slice(max(left, 0), left + window)
        pixels = x[b, rows, columns, c]
        row, column = np.unravel_index(np.argmax(pixels), pixels.shape)  # NaN counts as the largest
        expected[b, i, j, c] = pixels[row, column]
        gradient[b, rows.start + row, columns.start + column, c] += weights[b, i, j, c]
    np.testing.assert_array_equal(found, expected)
    pulled = jax.jit(lambda pullback, weights: pullback(weights)[0])(pullback, weights)
    np.testing.assert_allclose(pulled, gradient, rtol=1e-5)
