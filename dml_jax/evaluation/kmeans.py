"""k-means: k-means++ or random initialisation, Lloyd's iterations, restarts.

The result is bit-identical for a given seed, whatever the number of devices.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation._engine import tiles
from dml_jax.evaluation.validation import ArrayLike

# Points are assigned in blocks of at least BLOCK points, and of more if there are few centres.
BLOCK = 1152
BLOCK_SCORES = 1 << 21  # maximum number of scores in a larger block
# In float32, products cannot separate centres much closer to each other than to the origin (see
# `tiles`). If this fraction of points is that close to its centre, float64 is used.
CLOSE_POINTS = 0.01


Pair = tuple[jax.Array, jax.Array]


class KMeans(NamedTuple):
    """A clustering."""

    centers: np.ndarray  # float [k, D], float64 if float32 might not hold them
    assignments: np.ndarray  # int32 [N] in 0..k-1, the nearest centre of each point
    inertia: float  # sum of squared distances from the points to their centres, or infinity
    iterations: int  # of the best restart, including the last one, which changes no assignment


def fit(
    points: ArrayLike,
    k: int,
    *,
    init: str | ArrayLike = "k-means++",
    seed: int = 0,
    restarts: int = 1,
    max_iterations: int = 300,
) -> KMeans:
    """Clusters points and returns the restart with the smallest inertia.

    Args:
      points: [N, D] real numbers.
      k: number of clusters, at most N.
      init: "k-means++" (Arthur & Vassilvitskii, SODA 2007; each centre is the best of 2 + ln k
        draws), "random" for random points, or the initial centres [k, D].
      restarts: number of initialisations; ignored if `init` is an array.
      max_iterations: limit on Lloyd's iterations, which stop when no assignment changes.
    """
    rows = validation.embeddings(points, name="points")
    k = validation.check_whole("k", k, 1, len(rows))
    validation.check_whole("seed", seed, 0, 2**32 - 1)  # JAX would truncate larger seeds
    validation.check_whole("restarts", restarts, 1)
    validation.check_whole("max_iterations", max_iterations, 0)
    shape = [k, rows.shape[1]]
    start: str | np.ndarray
    if isinstance(init, str):
        validation.check_choice("init", init, STARTS, otherwise=f", or centres {shape}")
        start = init
    else:
        start = validation.embeddings(init, name="init")
        if list(start.shape) != shape:
            raise DataError(f"init must be centres {shape}; got shape {list(start.shape)}")

    centering = tiles.choose_centering([rows], "euclidean")

    def run(dtype: np.dtype) -> tuple[KMeans, bool]:
        """The clustering, and whether `dtype` resolves the distances to the centres."""
        x = jnp.asarray(centering.apply(rows, dtype))
        results = []
        for restart in range(restarts if isinstance(start, str) else 1):
            if isinstance(start, str):
                key = jax.random.fold_in(jax.random.key(seed), restart)
                first = STARTS[start](x, key, k)
            else:
                first = jnp.asarray(centering.apply(start, dtype))
            result = lloyd(x, first, max_iterations, jax.default_backend() == "cpu")
            results.append((float(np.sum(np.asarray(result[2]), dtype=np.float64)), result))
        inertia, result = min(results, key=lambda pair: pair[0])
        centers, nearest, squares, iterations = map(np.asarray, result)
        lengths = np.asarray(jnp.sum(x * x, axis=1))
        error = tiles.error_bound(x.shape[1], dtype)
        close = (squares > 0) & tiles.unreliable(squares, lengths, error)
        precise = dtype == np.float64 or bool(close.mean() < CLOSE_POINTS)
        centers = centering.unscaled(centers + centering.center)
        inertia = float(centering.unscaled(inertia, 2))
        return KMeans(centers, nearest, inertia, int(iterations)), precise

    dtype = validation.compute_dtype(rows)
    result, precise = run(dtype)
    if not precise:
        with jax.enable_x64(True):
            result, _ = run(np.dtype(np.float64))
    kind = np.dtype(np.float64) if centering.exponent else dtype
    return result._replace(centers=result.centers.astype(kind))


def _assign(x: jax.Array, centers: jax.Array) -> jax.Array:
    """Index of the nearest centre of each point, ties to the lower index: int32 [N]."""
    # The nearest centre has the largest score <x, c> - |c|^2 / 2. Unrolled vector comparisons find
    # it, first within groups of centres and then between groups, because a plain argmax costs as
    # much as the product on CPUs.
    k = len(centers)
    group_size = math.isqrt(k - 1) + 1
    groups = -(-k // group_size)
    padding = groups * group_size - k
    offset = -jnp.sum(centers * centers, axis=1) / 2
    offset = jnp.pad(offset, (0, padding), constant_values=-jnp.inf)
    offset = offset.reshape(groups, group_size, 1)
    padded = jnp.pad(centers, ((0, padding), (0, 0)))

    def block(rows: jax.Array) -> jax.Array:
        product = jnp.matmul(padded, rows.T, precision=jax.lax.Precision.HIGHEST)
        scores = product.reshape(groups, group_size, -1)
        peak = scores[:, 0] + offset[:, 0]
        member = jnp.zeros(peak.shape, jnp.int32)
        for i in range(1, group_size):
            score = scores[:, i] + offset[:, i]
            higher = score > peak
            peak, member = jnp.where(higher, score, peak), jnp.where(higher, i, member)
        best, nearest = peak[0], member[0]
        for g in range(1, groups):
            higher = peak[g] > best
            best = jnp.where(higher, peak[g], best)
            nearest = jnp.where(higher, member[g] + g * group_size, nearest)
        return nearest

    size = min(len(x), max(BLOCK, BLOCK_SCORES // k))
    whole = len(x) // size * size
    if size == len(x):
        return block(x)
    nearest = jax.lax.map(block, x[:whole].reshape(-1, size, x.shape[1])).reshape(-1)
    return nearest if whole == len(x) else jnp.concatenate([nearest, block(x[whole:])])


def _cluster_sums(x: jax.Array, nearest: jax.Array, k: int) -> Pair:
    """Sum [k, D] and number [k] of the points in each cluster, by one-hot matrix products."""
    size = min(len(x), BLOCK)
    padding = -len(x) % size
    rows = jnp.pad(x, ((0, padding), (0, 0))).reshape(-1, size, x.shape[1])
    clusters = jnp.pad(nearest, (0, padding), constant_values=-1).reshape(-1, size)

    def add(totals: Pair, block: Pair) -> tuple[Pair, None]:
        member = jax.nn.one_hot(block[1], k, axis=0, dtype=x.dtype)
        product = jnp.matmul(member, block[0], precision=jax.lax.Precision.HIGHEST)
        return (totals[0] + product, totals[1] + jnp.sum(member, axis=1)), None

    empty = jnp.zeros((k, x.shape[1]), x.dtype), jnp.zeros((k,), x.dtype)
    return jax.lax.scan(add, empty, (rows, clusters))[0]


def _squared_distances(x: jax.Array, centers: jax.Array, nearest: jax.Array) -> jax.Array:
    """Squared distance of each point to its centre, [N]."""
    return jnp.sum((x - centers[nearest]) ** 2, axis=1)


@partial(jax.jit, static_argnames="scatter")
def lloyd(
    x: jax.Array, start: jax.Array, max_iterations: int, scatter: bool
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Lloyd's iterations -> centres [k, D], assignments [N], squared distances [N], iterations.

    On CPUs a `scatter` adds in a fixed order. Elsewhere its order varies, and a product with the
    one-hot assignments keeps the result reproducible.
    """
    k = len(start)

    def update(centers: jax.Array, nearest: jax.Array) -> jax.Array:
        if scatter:
            sums = jax.ops.segment_sum(x, nearest, k)
            counts = jax.ops.segment_sum(jnp.ones_like(x[:, 0]), nearest, k)
        else:
            sums, counts = _cluster_sums(x, nearest, k)
        means = sums / jnp.maximum(counts, 1)[:, None]

        def refill(means: jax.Array) -> jax.Array:
            """Moves the centres of empty clusters to the points farthest from their centres."""
            empty = counts == 0
            distances = _squared_distances(x, centers, nearest)
            turn = jnp.clip(jnp.cumsum(empty) - 1, 0, len(x) - 1)
            order = jnp.argsort(-distances, stable=True)[turn]
            replacement = jnp.where((distances[order] > 0)[:, None], x[order], centers)
            return jnp.where(empty[:, None], replacement, means)

        return jax.lax.cond(jnp.any(counts == 0), refill, lambda means: means, means)

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        centers, before, iterations, _ = state
        centers = update(centers, before)
        nearest = _assign(x, centers)
        return centers, nearest, iterations + 1, jnp.any(nearest != before)

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        return state[3] & (state[2] < max_iterations)

    zero = jnp.zeros((), jnp.int32)
    state: tuple[jax.Array, ...] = start, _assign(x, start), zero, jnp.array(True)
    centers, nearest, iterations, changed = jax.lax.while_loop(unfinished, step, state)
    iterations = jnp.minimum(iterations + ~changed, max_iterations)
    return centers, nearest, _squared_distances(x, centers, nearest), iterations


@partial(jax.jit, static_argnames="k")
def _kmeans_plus_plus(x: jax.Array, key: jax.Array, k: int) -> jax.Array:
    """Greedy k-means++: each centre is the best of a few points drawn by squared distance."""
    trials = 2 + int(np.log(k))
    squares = jnp.sum(x * x, axis=1)

    def squared_distances(rows: jax.Array) -> jax.Array:
        product = jnp.matmul(rows, x.T, precision=jax.lax.Precision.HIGHEST)
        lengths = jnp.sum(rows * rows, axis=1)[:, None]
        return jnp.maximum(squares[None, :] - 2 * product + lengths, 0)

    def add(i: jax.Array, carry: Pair) -> Pair:
        indices, closest = carry
        # The smallest normal number keeps the draw defined if all points are centres or equal.
        cumulative = jnp.cumsum(closest + jnp.finfo(x.dtype).tiny)
        shares = jax.random.uniform(jax.random.fold_in(key, i), (trials,), x.dtype)
        draws = jnp.searchsorted(cumulative, shares * cumulative[-1], side="right")
        draws = jnp.minimum(draws, len(x) - 1).astype(jnp.int32)
        distances = jnp.minimum(closest[None, :], squared_distances(x[draws]))
        best = jnp.argmin(jnp.sum(distances, axis=1))
        return indices.at[i].set(draws[best]), distances[best]

    first = jax.random.randint(jax.random.fold_in(key, 0), (), 0, len(x), jnp.int32)
    indices = jnp.zeros((k,), jnp.int32).at[0].set(first)
    indices, _ = jax.lax.fori_loop(1, k, add, (indices, squared_distances(x[first][None, :])[0]))
    return x[indices]


STARTS: dict[str, Callable[..., jax.Array]] = {
    "k-means++": _kmeans_plus_plus,
    "random": lambda x, key, k: x[jax.random.choice(key, len(x), (k,), replace=False)],
}
