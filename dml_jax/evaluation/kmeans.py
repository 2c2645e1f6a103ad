"""k-means: k-means++ or random start, Lloyd's iterations, restarts. Bit-equal for a seed."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import arrays


class KMeans(NamedTuple):
    """A clustering.

    Attributes:
      centers: [k, D].
      assignments: int32 [N], in 0..k-1, the nearest centre of each point.
      inertia: sum of squared distances of the points to their centres.
      iterations: Lloyd iterations of the best restart.
    """

    centers: np.ndarray
    assignments: np.ndarray
    inertia: float
    iterations: int


def fit(
    points: Any,
    k: int,
    *,
    init: Any = "k-means++",
    seed: int = 0,
    restarts: int = 1,
    max_iterations: int = 300,
) -> KMeans:
    """Clusters points; the restart with the smallest inertia wins.

    Args:
      points: [N, D] real numbers.
      k: number of clusters, at most N.
      init: "k-means++" (greedy; Arthur & Vassilvitskii, SODA 2007), "random" rows, or starting centres [k, D].
      seed: of the starts.
      restarts: how many starts are tried; one for given centres.
      max_iterations: of Lloyd, which stops when no assignment changes.

    Raises:
      DataError: wrong shapes or types, rows that are not finite, k not in 1..N.
    """
    checked = arrays.embeddings(points, name="points")
    if not 0 < k <= len(checked):
        raise DataError(f"k={k}: must be in 1..{len(checked)}, the number of points")
    x = jnp.asarray(checked, arrays.working(checked))
    best: KMeans | None = None
    given = None if isinstance(init, str) else arrays.embeddings(init, name="init")
    if given is not None and given.shape != (k, x.shape[1]):
        raise DataError(f"init: shape {list(given.shape)}; give [{k}, {x.shape[1]}]")
    if given is None and init not in ("k-means++", "random"):
        raise DataError(f"init={init!r}: give 'k-means++', 'random' or an array of centres")
    for restart in range(restarts if given is None else 1):
        key = jax.random.fold_in(jax.random.key(seed), restart)
        if given is not None:
            start = jnp.asarray(given, x.dtype)
        elif init == "random":
            start = x[jax.random.choice(key, len(x), (k,), replace=False)]
        else:
            start = spread(x, key, k)
        centers, nearest, inertia, iterations = lloyd(x, start, max_iterations)
        if best is None or float(inertia) < best.inertia:
            best = KMeans(np.asarray(centers), np.asarray(nearest), float(inertia), int(iterations))
    assert best is not None
    return best


def squared(x: jax.Array, centers: jax.Array) -> jax.Array:
    """Squared distances [N, k]."""
    product = jnp.matmul(x, centers.T, precision=jax.lax.Precision.HIGHEST)
    far = jnp.sum(x * x, axis=1)[:, None] - 2 * product + jnp.sum(centers * centers, axis=1)[None, :]
    return jnp.maximum(far, 0)


@partial(jax.jit, static_argnames="k")
def spread(x: jax.Array, key: jax.Array, k: int) -> jax.Array:
    """Greedy k-means++: each new centre is the best of some points drawn by squared distance."""
    trials = 2 + int(np.log(k))
    first = jax.random.randint(jax.random.fold_in(key, 0), (), 0, x.shape[0])

    def add(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        chosen, closest = carry
        draws = jax.random.choice(jax.random.fold_in(key, i), x.shape[0], (trials,), p=closest + 1e-30)
        after = jnp.minimum(closest[:, None], squared(x, x[draws]))
        winner = jnp.argmin(jnp.sum(after, axis=0))
        return chosen.at[i].set(draws[winner]), after[:, winner]

    chosen = jnp.zeros((k,), jnp.int32).at[0].set(first)
    chosen, _ = jax.lax.fori_loop(1, k, add, (chosen, squared(x, x[first][None, :])[:, 0]))
    return x[chosen]


@jax.jit
def lloyd(
    x: jax.Array, start: jax.Array, max_iterations: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Lloyd's iterations until no assignment changes."""
    k = start.shape[0]

    def assign(centers: jax.Array) -> tuple[jax.Array, jax.Array]:
        far = squared(x, centers)
        return jnp.argmin(far, axis=1).astype(jnp.int32), jnp.min(far, axis=1)

    def update(centers: jax.Array, nearest: jax.Array, far: jax.Array) -> jax.Array:
        sums = jax.ops.segment_sum(x, nearest, k)
        counts = jax.ops.segment_sum(jnp.ones_like(far), nearest, k)
        # Empty clusters take the points farthest from their centres.
        empty = counts == 0
        farthest = jax.lax.top_k(far, k)[1]
        refill = x[farthest[jnp.maximum(jnp.cumsum(empty) - 1, 0)]]
        return jnp.where(empty[:, None], refill, sums / jnp.maximum(counts, 1)[:, None])

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        centers, nearest, far, iterations, _ = carry
        centers = update(centers, nearest, far)
        after, far = assign(centers)
        return centers, after, far, iterations + 1, jnp.any(after != nearest)

    nearest, far = assign(start)
    carry = (start, nearest, far, jnp.zeros((), jnp.int32), jnp.array(True))
    centers, nearest, far, iterations, _ = jax.lax.while_loop(
        lambda c: c[4] & (c[3] < max_iterations), step, carry
    )
    return centers, nearest, jnp.sum(far), iterations
