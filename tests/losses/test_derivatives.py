"""Every loss is differentiable in both modes, twice, under `vmap` and `checkpoint`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dml_jax.losses import pairwise, signature
from dml_jax.methods.baseline import LOSSES, takes
from tests.losses.test_arguments import table
from tests.losses.test_public import KEY, LABELS, X

RNG = np.random.default_rng(3)
STEP = 1e-5
OPTIONS: dict[str, dict[str, Any]] = {
    "triplet": {"mining": "all", "smooth": True, "squared": False},
    "margin": {"mining": "hard"},
    "smooth_ap": {"temperature": 0.1},
    "recall_at_k": {"temperature": 0.1},
    "circle": {"gamma": 4.0},
    "multi_similarity": {"beta": 10.0},
}
FAST = ("contrastive", "triplet", "recall_at_k")
BIG = {"arcface": {"scale": 8.0}, "subcenter_arcface": {"scale": 8.0}, "cosface": {"scale": 8.0}}


def of_rows(name: str, labels: Any = LABELS) -> Any:
    """The loss as a function of embeddings [N, D]."""
    loss = LOSSES[name]
    options = (OPTIONS | BIG).get(name, {}) | ({"key": KEY} if takes(loss, "key") else {})
    tables = [
        jnp.asarray(np.random.default_rng(1).normal(size=table(each.axes).shape) + 1)
        for each in signature.learned(loss).values()
    ]
    return lambda x: loss(x, labels, *tables, **options)


def close_rows() -> np.ndarray:
    """With rows that are close to each other, in one class and in two."""
    x = X.copy()
    x[1] = x[0] + 1e-2 * RNG.normal(size=5)
    x[4] = 1.5 * x[0] + 1e-2 * RNG.normal(size=5)
    return x


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in LOSSES]
)
def test_both_modes_twice_vmap_and_checkpoint(name: str, x64: None) -> None:
    """Forward and reverse derivatives and Hessian products agree with finite differences."""
    loss, v, w = of_rows(name), RNG.normal(size=X.shape), RNG.normal(size=X.shape)

    @jax.jit
    def derivatives(x: jax.Array) -> dict[str, Any]:
        gradient, several = jax.grad(loss), jax.vmap(jax.grad(jax.checkpoint(loss)))
        return {
            "value": loss(x),
            "reverse": jnp.vdot(gradient(x), w),
            "forward": jax.jvp(loss, (x,), (w,))[1],
            "forward over reverse": jnp.vdot(jax.jvp(gradient, (x,), (w,))[1], v),
            "reverse over reverse": jnp.vdot(jax.grad(lambda x: jnp.vdot(gradient(x), v))(x), w),
            "vmap, checkpoint": jnp.vdot(several(jnp.stack([x, w]))[0], w),
            "gradient": gradient(x),
        }

    for x in (X, close_rows()):
        found = derivatives(x)
        after, before = (derivatives(x + step * w) for step in (STEP, -STEP))
        first = (float(after["value"]) - float(before["value"])) / (2 * STEP)
        slopes = np.asarray(after["gradient"]) - np.asarray(before["gradient"])
        second = np.vdot(slopes, v) / (2 * STEP)
        if name == "circle":  # whose weights are constants in its derivatives
            first, second = found["reverse"], found["reverse over reverse"]
        for kind in ("reverse", "forward", "vmap, checkpoint"):
            np.testing.assert_allclose(found[kind], first, rtol=2e-5, atol=1e-6, err_msg=kind)
        for kind in ("forward over reverse", "reverse over reverse"):
            np.testing.assert_allclose(found[kind], second, rtol=2e-3, atol=1e-5, err_msg=kind)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in LOSSES]
)
def test_under_shard_map(name: str, x64: None) -> None:
    """With its default checks, on eight devices: values, gradients and Hessian products."""
    x, v = RNG.normal(size=(2, 16, 5))
    labels, rows = np.arange(16) % 6, P("data")
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def derivatives(x: Any, v: Any, loss: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        product = jax.jvp(jax.grad(loss), (x,), (v,))[1]
        return *jax.value_and_grad(loss)(x), product

    def local(x: jax.Array, v: jax.Array, labels: jax.Array) -> Any:
        whole = partial(jax.lax.all_gather, axis_name="data", tiled=True)
        of_batch = lambda x: of_rows(name, whole(labels))(whole(x))  # noqa: E731
        return derivatives(x, v, lambda x: jax.lax.pmean(of_batch(x), "data"))

    on_all = jax.shard_map(local, mesh=mesh, in_specs=rows, out_specs=(P(), rows, rows))
    expected = jax.jit(partial(derivatives, loss=of_rows(name, labels)))(x, v)
    for found, wanted in zip(jax.jit(on_all)(x, v, labels), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_second_derivatives_of_close_rows(x64: None) -> None:
    """Those of |x - y|^2 are constant: 2 of a row with itself, -2 of the two."""
    x = close_rows()
    squares = lambda a, b: pairwise.squared_distances(a, b)[0, 1]  # noqa: E731 x_0 and x_1
    (aa, ab), (_, bb) = jax.jit(jax.hessian(squares, (0, 1)))(x, x)
    eye = 2 * np.eye(5)
    for found, expected in ((aa[0, :, 0], eye), (ab[0, :, 1], -eye), (bb[1, :, 1], eye)):
        np.testing.assert_allclose(found, expected, atol=1e-12)
