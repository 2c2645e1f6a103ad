"""Derivatives: in both modes, twice, under `vmap`, `checkpoint` and `shard_map`; of close, equal
and zero rows in float32."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax import losses
from dml_jax.losses import pairwise
from dml_jax.methods.baseline import LOSSES
from dml_jax.numerics import unit
from tests.losses import references as ref
from tests.losses.references import LABELS, X

RNG = np.random.default_rng(3)
STEP = 1e-5
MESH = Mesh(np.array(jax.devices()), ("data",))
OPTIONS: dict[str, dict[str, Any]] = {
    "triplet": {"mining": "all", "smooth": True, "squared": False},
    "margin": {"mining": "hard"},
    "smooth_ap": {"temperature": 0.1},
    "recall_at_k": {"temperature": 0.1},
    "circle": {"gamma": 4.0},
    "multi_similarity": {"beta": 10.0},
    **{name: {"scale": 8.0} for name in ("arcface", "subcenter_arcface", "cosface")},
}
FAST = ("contrastive", "triplet", "recall_at_k")
every_loss = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in LOSSES]
)


def close_rows() -> np.ndarray:
    """With rows that are close to each other, in one class and in two."""
    x = X.copy()
    x[1] = x[0] + 1e-2 * RNG.normal(size=5)
    x[4] = 1.5 * x[0] + 1e-2 * RNG.normal(size=5)
    return x


@every_loss
def test_both_modes_twice_vmap_and_checkpoint(name: str, x64: None) -> None:
    """Forward and reverse derivatives and Hessian products agree with finite differences."""
    v, w = RNG.normal(size=(2, *X.shape))
    loss = ref.by_default(name, **OPTIONS.get(name, {}))

    @jax.jit
    def derivatives(x: jax.Array) -> Any:
        gradient, several = jax.grad(loss), jax.vmap(jax.grad(jax.checkpoint(loss)))
        reverse, forward = jnp.vdot(gradient(x), w), jax.jvp(loss, (x,), (w,))[1]
        checkpointed = jnp.vdot(several(jnp.stack([x, w]))[0], w)
        over_reverse = jnp.vdot(jax.jvp(gradient, (x,), (w,))[1], v)
        twice = jnp.vdot(jax.grad(lambda x: jnp.vdot(gradient(x), v))(x), w)
        return loss(x), gradient(x), (reverse, forward, checkpointed), (twice, over_reverse)

    for x in (X, close_rows()):
        *_, first, second = derivatives(x)
        after, before = (derivatives(x + step * w)[:2] for step in (STEP, -STEP))
        slope, change = ((np.asarray(a) - b) / (2 * STEP) for a, b in zip(after, before, strict=True))
        bend = np.vdot(change, v)
        if name == "circle":  # whose weights are constants in its derivatives
            slope, bend = first[0], second[0]
        np.testing.assert_allclose(first, np.full(3, slope), rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(second, np.full(2, bend), rtol=2e-3, atol=1e-5)


def test_the_weights_of_the_circle_loss_are_constants(x64: None) -> None:
    def by_anchors(x: jax.Array) -> jax.Array:
        s = unit(x) @ unit(x).T
        near, far = jax.lax.stop_gradient((jnp.maximum(1.4 - s, 0), jnp.maximum(s + 0.4, 0)))
        pull = jnp.where(ref.POSITIVE, jnp.exp(-80 * near * (s - 0.6)), 0).sum(axis=1)
        push = jnp.where(ref.NEGATIVE, jnp.exp(80 * far * (s - 0.4)), 0).sum(axis=1)
        return jnp.mean(jnp.log1p(pull * push)[ref.PAIRED])

    ours, expected = (jax.jit(jax.grad(loss))(X) for loss in (ref.call("circle"), by_anchors))
    np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())


@every_loss
def test_under_shard_map(name: str, x64: None) -> None:
    """With its default checks, on eight devices: values, gradients and Hessian products."""
    x, v = RNG.normal(size=(2, 16, 5))
    labels, rows = np.arange(16) % 6, P("data")
    loss = ref.by_default(name, **OPTIONS.get(name, {}))

    def derivatives(x: Any, v: Any, loss: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        return *jax.value_and_grad(loss)(x), jax.jvp(jax.grad(loss), (x,), (v,))[1]

    def local(x: jax.Array, v: jax.Array, labels: jax.Array) -> Any:
        whole = partial(jax.lax.all_gather, axis_name="data", tiled=True)
        return derivatives(x, v, lambda x: jax.lax.pmean(loss(whole(x), whole(labels)), "data"))

    on_all = jax.shard_map(local, mesh=MESH, in_specs=rows, out_specs=(P(), rows, rows))
    expected = jax.jit(partial(derivatives, loss=lambda x: loss(x, labels)))(x, v)
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


def groups(distance: float) -> np.ndarray:
    """24 unit rows [24, 128] in three groups, in each of which they are about `distance` apart; two are equal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 128))[np.arange(24) % 3]
    x = x + distance / 2**0.5 * rng.normal(size=(24, 128))
    x[23] = x[20]
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_and_their_gradients(dtype: type, x64: None) -> None:
    """Under jit, and with a batch that is divided among devices."""
    weights = np.random.default_rng(1).normal(size=(24, 24))
    rounding = np.finfo(dtype).eps

    @jax.jit
    def of_rows(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        squares = lambda x: pairwise.squared_distances(x, x)  # noqa: E731
        gradient = jax.grad(lambda x: jnp.vdot(jnp.asarray(weights, dtype), squares(x)))(x)
        return squares(x), pairwise.distances(x, x), gradient

    for distance in (1e-4, 1e-3, 1e-2, 0.1, 1.0):
        x = groups(distance).astype(dtype)
        differences = x[:, None].astype(float) - x[None]
        exact = (differences**2).sum(axis=2)
        kept = exact > 16 * rounding  # 8 times the sum of both squared lengths, 2
        expected = np.einsum("ij,ijd->id", 2 * kept * (weights + weights.T), differences)
        for rows in (jnp.asarray(x), jax.device_put(x, NamedSharding(MESH, P("data")))):
            squares, distances, gradient = of_rows(rows)
            assert squares.dtype == gradient.dtype == dtype
            sure = np.abs(exact / (16 * rounding) - 1) > 0.5  # not rounded to the other side
            np.testing.assert_allclose(squares, exact * kept, rtol=0, atol=24 * rounding)
            assert (np.asarray(squares > 0) == kept)[sure].all()
            np.testing.assert_array_equal(distances, np.sqrt(squares))
            if sure.all():
                limit = max(1e-7, 8 * rounding) * np.abs(weights).sum(axis=1).max()
                np.testing.assert_allclose(gradient, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_of_equal_rows_are_zero(dtype: type, x64: None) -> None:
    """And so are those of rows that are too close; second derivatives of others are finite."""
    x = jnp.asarray(groups(1e-4 if dtype == np.float32 else 1e-9)[::3], dtype)

    @jax.jit
    def derivatives(x: jax.Array) -> list[jax.Array]:
        of_pair = lambda x: pairwise.distances(x, x)[0, 1:].sum()  # noqa: E731
        return [jax.grad(of_pair)(x), jax.hessian(lambda x: pairwise.distances(x, x).sum())(x)]

    assert not any(found.any() for found in derivatives(x))
    for found in derivatives(x.at[:4].add(1.0)):
        assert np.isfinite(found).all()
        assert found.any()


def on_proxies(x: jax.Array) -> jax.Array:
    return losses.arcface(x, LABELS, jnp.concatenate([x[:1], x[2:7]]))


def with_equal_centers(loss: Any, **options: Any) -> Any:
    return lambda x: loss(x, LABELS, jnp.ones((6, 3, 5), x.dtype), **options)


REVERSED: Any = {"positive": ref.SAME[:, ::-1], "negative": ~ref.SAME[:, ::-1]}
MORE: dict[str, Callable[[jax.Array], jax.Array]] = {
    "contrastive, memory": lambda x: losses.contrastive(x, candidates=x[::-1], **REVERSED),
    "triplet, hard": ref.call("triplet", mining="hard", squared=False),
    "lifted structure, any norm": ref.call("lifted_structure", normalize=False),
    "multi-similarity, all pairs": ref.call("multi_similarity", copies="keep", mining=False),
    "soft triple, equal centers": with_equal_centers(losses.soft_triple, spread=5.0),
    "subcenter arcface, equal centers": with_equal_centers(losses.subcenter_arcface),
    "arcface, at a proxy": on_proxies,
}
# The others have the rows and distances of one of these.
QUICK = ("normalized_softmax", "proxy_anchor", "soft_triple", "proxy_nca", "triplet", "margin")
QUICK += ("lifted_structure", "n_pair", "multi_similarity", "smooth_ap", *MORE)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in (*ref.CASES, *MORE)]
)
def test_float32_agrees_with_float64(name: str, x64: None) -> None:
    """Values and gradients, of equal rows and zero rows."""
    loss = MORE[name] if name in MORE else ref.call(name)
    found = []
    for dtype in (jnp.float32, jnp.float64):
        call = jax.value_and_grad(lambda x, dtype=dtype: loss(x).astype(dtype))
        found.append(jax.jit(call)(jnp.asarray(ref.with_duplicates(), dtype)))
    (value, gradient), (exact_value, exact) = found
    np.testing.assert_allclose(value, exact_value, rtol=1e-5)
    # Divided by the length of zero rows, at least 1e-12, it was up to 1e12.
    assert np.linalg.norm(exact) < 1e4
    limit = 1e-6 + 1e-4 * np.abs(exact).max()
    np.testing.assert_allclose(gradient, exact, rtol=0, atol=limit)


@pytest.mark.parametrize("width", [1, 5, 512])
def test_distances_of_equal_rows_are_zero(width: int) -> None:
    """Wherever the rows are in the batch; -0.0 equals 0.0, and near copies are not equal."""
    x = np.random.default_rng(1).normal(size=(70, width)).astype(np.float32)
    x[40:60], x[60], x[61] = x[:20], 0, -0.0
    x[62] = x[0] * np.float32(1.1)
    rows = np.asarray(jax.jit(unit)(x) if width > 1 else x)
    distances = np.asarray(jax.jit(pairwise.distances)(rows, rows))
    np.testing.assert_array_equal(distances[(rows[:, None] == rows[None]).all(-1)], 0)
    far = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    np.testing.assert_allclose(distances, far, atol=2e-3)
    assert (distances[far > 0.01] > 0).all()
