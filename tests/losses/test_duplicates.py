"""Equal rows and zero rows: every loss gives its float64 value and gradient in float32."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.losses import pairwise
from dml_jax.numerics import unit
from tests.losses.test_public import CALLS, LABELS

Loss = Callable[[jax.Array, jax.Array], jax.Array]
MORE: dict[str, Loss] = {
    "contrastive, memory": lambda x, y: losses.contrastive(
        x, y, candidates=losses.Candidates(x[::-1], *memory(y))
    ),
    "triplet, hard": lambda x, y: losses.triplet(x, y, mining="hard", squared=False),
    "lifted structure, any norm": lambda x, y: losses.lifted_structure(x, y, normalize=False),
    "multi-similarity, all pairs": lambda x, y: losses.multi_similarity(
        x, y, copies="keep", mining=False
    ),
    "soft triple, equal centers": lambda x, y: losses.soft_triple(
        x, y, jnp.ones((6, 3, 5), x.dtype), spread=5.0
    ),
    "subcenter arcface, equal centers": lambda x, y: losses.subcenter_arcface(
        x, y, jnp.ones((6, 3, 5), x.dtype)
    ),
    "arcface, at a proxy": lambda x, y: losses.arcface(x, y, jnp.concatenate([x[:1], x[2:7]])),
}
LOSSES: dict[str, Loss] = {name: call for name, (call, _) in CALLS.items()} | MORE


def memory(labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positive and negative pairs with the reversed batch."""
    return labels[:, None] == labels[None, ::-1], labels[:, None] != labels[None, ::-1]


def with_duplicates(seed: int = 9) -> np.ndarray:
    """Twelve rows: copies within a class (0, 1), across classes (0, 3 and 8, 5), and zero rows (4,
    6, 7, 11)."""
    x = np.random.default_rng(seed).normal(size=(12, 5)).astype(np.float32)
    x[[1, 3]], x[5] = x[0], x[8]
    x[[4, 6, 7, 11]] = 0
    return x


# The others have the rows and distances of one of these.
FAST = ("normalized_softmax", "proxy_anchor", "soft_triple", "proxy_nca", "triplet", "margin")
FAST += ("lifted_structure", "n_pair", "multi_similarity", "smooth_ap", *MORE)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in LOSSES]
)
def test_float32_agrees_with_float64(name: str, x64: None) -> None:
    found = []
    for dtype in (jnp.float32, jnp.float64):
        call = lambda x, dtype=dtype: LOSSES[name](x, jnp.asarray(LABELS)).astype(dtype)  # noqa: E731
        found.append(jax.jit(jax.value_and_grad(call))(jnp.asarray(with_duplicates(), dtype)))
    (value, gradient), (exact_value, exact_gradient) = found
    np.testing.assert_allclose(value, exact_value, rtol=1e-5)
    assert (
        np.linalg.norm(exact_gradient) < 1e4
    )  # divided by the length of zero rows, at least 1e-12, it was up to 1e12
    np.testing.assert_allclose(
        gradient, exact_gradient, rtol=0, atol=1e-6 + 1e-4 * np.abs(exact_gradient).max()
    )


@pytest.mark.parametrize("width", [1, 5, 512])
def test_distances_of_equal_rows_are_zero(width: int) -> None:
    """Wherever the rows are in the batch; -0.0 equals 0.0, and near copies are not equal."""
    x = np.random.default_rng(1).normal(size=(70, width)).astype(np.float32)
    x[40:60], x[60], x[61] = x[:20], 0, -0.0
    x[62] = x[0] * np.float32(1.1)
    rows = jax.jit(unit)(x) if width > 1 else jnp.asarray(x)
    distances = np.asarray(jax.jit(pairwise.distances)(rows, rows))
    equal = (np.asarray(rows)[:, None] == np.asarray(rows)[None]).all(-1)
    np.testing.assert_array_equal(distances[equal], 0)
    far = np.linalg.norm(np.asarray(rows)[:, None] - np.asarray(rows)[None], axis=-1)
    np.testing.assert_allclose(distances, far, atol=2e-3)
    assert (distances[far > 0.01] > 0).all()
