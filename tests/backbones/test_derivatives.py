"""Which derivatives the layers of networks have: those that the docstrings of `convolution.plain`
and `numerics.heads_in` promise."""

import contextlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from dml_jax.backbones import convolution, layers
from dml_jax.backbones.batch_norm import BatchNorm
from dml_jax.numerics import heads_in, product

RNG = np.random.default_rng(0)
STEP = 1e-5
FORWARD = "forward-mode autodiff .* custom_vjp"  # in JAX's message


class Convolutions(nn.Module):
    """A 3x3 convolution with a bias, batch statistics, a depthwise convolution, pooling."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = BatchNorm()(layers.Conv(4, 3, use_bias=True)(x), True)
        x = layers.MaxPool(2, 2)(jnp.tanh(x))
        return layers.Conv(4, 3, padding=1, groups=4)(x)


class Transformer(nn.Module):
    """Layer normalisation, attention and linear layers."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = layers.LayerNorm()(x.reshape(len(x), -1, 4))
        rows = layers.Dense(4)(x)[:, :, None]
        return layers.Dense(3)(layers.attention(rows, 2 * rows, rows**2))


def case(module: nn.Module) -> tuple[Callable[..., Array], Any, Any, Any]:
    """A function of the parameters, the parameters, and two directions in which they move."""
    x = RNG.normal(size=(2, 6, 6, 4))
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes)
    normal = lambda leaf: RNG.normal(size=leaf.shape)  # noqa: E731
    start, *moves = (jax.tree.map(normal, variables["params"]) for _ in range(3))

    def value(params: Any) -> Array:
        given = variables | {"params": params}
        return jnp.sum(module.apply(given, x, mutable=["batch_stats"])[0] ** 3)

    return value, start, *moves


def dot(a: Any, b: Any) -> Array:
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))


@pytest.mark.parametrize("module", [Convolutions(), Transformer()], ids=["convolutions", "transformer"])
def test_both_modes_twice(module: nn.Module, x64: None) -> None:
    """Forward mode works in convolutional networks within `plain` and in transformers anywhere,
    reverse mode in both anywhere."""
    value, start, v, w = case(module)

    def derivatives(params: Any) -> list[Array]:
        slope = jax.grad(value)
        reverse = jax.grad(lambda params: dot(slope(params), v))
        return [
            jax.jvp(value, (params,), (w,))[1],
            dot(slope(params), w),
            dot(jax.jvp(slope, (params,), (w,))[1], v),
            dot(reverse(params), w),
        ]

    def moved(step: float) -> Any:
        return jax.tree.map(lambda leaf, change: leaf + step * change, start, w)

    plain = isinstance(module, Convolutions)
    with convolution.plain() if plain else contextlib.nullcontext():
        found = jax.jit(derivatives)(start)
    slopes = jax.jit(lambda params: (value(params), dot(jax.grad(value)(params), v)))
    after, before = slopes(moved(STEP)), slopes(moved(-STEP))
    first, second = ((a - b) / (2 * STEP) for a, b in zip(after, before, strict=True))
    np.testing.assert_allclose(found, [first, first, second, second], rtol=1e-6)
    again = jax.grad(lambda params: dot(jax.grad(value)(params), v))
    found = jax.jit(lambda params: dot(again(params), w))(start)
    np.testing.assert_allclose(found, second, rtol=1e-6)


def test_no_forward_mode_outside_plain(x64: None) -> None:
    value, start, _, w = case(Convolutions())
    with pytest.raises(TypeError, match=FORWARD):
        jax.jvp(value, (start,), (w,))


def test_rounded_products() -> None:
    """Products of heads in bfloat16 can be differentiated repeatedly, but only in reverse mode."""
    a, b = RNG.normal(size=(2, 3, 3)).astype(np.float32)

    def value(x: Array) -> Array:
        return jnp.sum(product("nd,dc->nc", x, b) ** 2)

    with heads_in("bfloat16"):
        found = jax.jit(jax.grad(lambda x: jnp.vdot(jax.grad(value)(x), a)))(a)
        with pytest.raises(TypeError, match=FORWARD):
            jax.jvp(value, (a,), (a,))
    np.testing.assert_allclose(found, 2 * a @ b @ b.T, rtol=0.05, atol=0.05)
