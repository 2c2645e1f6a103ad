"""k-means: k-means++ or random start, Lloyd's iterations, restarts. Bit-equal for a seed, on any number of devices."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation._ranking import tiles

BLOCK = 1152  # points whose scores are held at once, at least
SCORES = 1 << 21  # scores held at once, for few centres


class KMeans(NamedTuple):
    """A clustering.

    Attributes:
      centers: float [k, D].
      assignments: int32 [N], in 0..k-1, the nearest centre of each point.
      inertia: sum of squared distances of the points to their centres.
      iterations: Lloyd iterations of the best start, the last one, which changes nothing, counted.
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
    progress: Callable[[int, int], None] | None = None,
) -> KMeans:
    """Clusters points; of several starts the one with the smallest inertia wins.

    Args:
      points: [N, D] real numbers.
      k: number of clusters, at most N.
      init: "k-means++" (Arthur & Vassilvitskii, SODA 2007; each centre the best of 2 + ln k draws), "random" rows, or
        the centres to start from, [k, D].
      seed: of the starts.
      restarts: how many starts are tried; given centres are one.
      max_iterations: of Lloyd, which stops when no assignment changes.
      progress: called with iterations done and at most, of all starts; those a start has no need of count as done.

    Raises:
      DataError: wrong shapes or types, rows that are not finite, k not in 1..N.
    """
    checked = validation.embeddings(points, name="points")
    if not 0 < k <= len(checked):
        raise DataError(f"k={k}: must be in 1..{len(checked)}, the number of points")
    given = None if isinstance(init, str) else validation.embeddings(init, name="init")
    if given is None and init not in ("k-means++", "random"):
        raise DataError(f"init={init!r}: give 'k-means++', 'random' or an array of centres")
    if given is not None and given.shape != (k, checked.shape[1]):
        raise DataError(f"init: has shape {list(given.shape)}; give [{k}, {checked.shape[1]}]")
    if restarts < 1 or max_iterations < 1:
        raise DataError(f"restarts={restarts}, max_iterations={max_iterations}: both must be positive")

    dtype = validation.working(checked)
    frame = tiles.frame([checked], "euclidean")
    x = jnp.asarray(frame.enter(checked, dtype))
    best = None
    starts = restarts if given is None else 1
    for restart in range(starts):

        def report(done: int, before: int = restart * max_iterations) -> None:
            if progress is not None:
                progress(before + done, starts * max_iterations)

        report(0)
        key = jax.random.fold_in(jax.random.key(seed), restart)
        if given is not None:
            start = jnp.asarray(frame.enter(given, dtype))
        elif init == "random":
            start = x[jax.random.choice(key, len(x), (k,), replace=False)]
        else:
            start = _spread(x, key, k)
        found = _lloyd(x, start, max_iterations, jax.default_backend() == "cpu", None if progress is None else report)
        report(max_iterations)
        inertia = float(np.sum(np.asarray(found[2]), dtype=np.float64))
        if best is None or inertia < best[0]:
            best = inertia, found
    assert best is not None
    inertia, (centers, nearest, _, iterations) = best
    return KMeans(
        (np.asarray(centers) / frame.scale + frame.center).astype(dtype),
        np.asarray(nearest),
        inertia / frame.scale**2,
        int(iterations),
    )


def _assign(x: jax.Array, centers: jax.Array) -> jax.Array:
    """Index of the nearest centre of each point, the lower one of equals: int32 [N].

    The nearest centre has the largest <x, c> - |c|^2 / 2. Centres lie along the rows of these scores, and the largest
    is found by two chains of vector comparisons, within groups of centres and between them: a plain argmax costs as
    much as the product on CPUs.
    """
    k = len(centers)
    length = math.isqrt(k - 1) + 1
    groups = -(-k // length)
    half = jnp.pad(-jnp.sum(centers * centers, axis=1) / 2, (0, groups * length - k), constant_values=-jnp.inf)
    half = half.reshape(groups, length, 1)
    padded = jnp.pad(centers, ((0, groups * length - k), (0, 0)))

    def block(rows: jax.Array) -> jax.Array:
        scores = jnp.matmul(padded, rows.T, precision=jax.lax.Precision.HIGHEST).reshape(groups, length, -1)
        peak = scores[:, 0] + half[:, 0]
        member = jnp.zeros(peak.shape, jnp.int32)
        for i in range(1, length):
            score = scores[:, i] + half[:, i]
            higher = score > peak
            peak, member = jnp.where(higher, score, peak), jnp.where(higher, i, member)
        best, nearest = peak[0], member[0]
        for g in range(1, groups):
            higher = peak[g] > best
            best, nearest = (
                jnp.where(higher, peak[g], best),
                jnp.where(higher, member[g] + g * length, nearest),
            )
        return nearest

    size = min(len(x), max(BLOCK, SCORES // k))
    whole = len(x) // size * size
    if size == len(x):
        return block(x)
    nearest = jax.lax.map(block, x[:whole].reshape(-1, size, x.shape[1])).reshape(-1)
    return nearest if whole == len(x) else jnp.concatenate([nearest, block(x[whole:])])


def _totals(x: jax.Array, nearest: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Sums [k, D] and numbers [k] of the points of each cluster, by products with blocks of assignments."""
    size = min(len(x), BLOCK)
    fill = -len(x) % size
    rows = jnp.pad(x, ((0, fill), (0, 0))).reshape(-1, size, x.shape[1])
    clusters = jnp.pad(nearest, (0, fill), constant_values=-1).reshape(-1, size)

    def add(totals: Any, block: Any) -> Any:
        member = jax.nn.one_hot(block[1], k, axis=0, dtype=x.dtype)
        product = jnp.matmul(member, block[0], precision=jax.lax.Precision.HIGHEST)
        return (totals[0] + product, totals[1] + jnp.sum(member, axis=1)), None

    empty = jnp.zeros((k, x.shape[1]), x.dtype), jnp.zeros((k,), x.dtype)
    return jax.lax.scan(add, empty, (rows, clusters))[0]


def _lloyd(
    x: jax.Array,
    start: jax.Array,
    max_iterations: int,
    scatter: bool,
    report: Callable[[int], None] | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, int]:
    """Lloyd's iterations until no assignment changes.

    Args:
      x: [N, D]; start: [k, D].
      max_iterations: updates of the centres at most.
      scatter: see `_iterate`.
      report: called with the iterations done after each; without it they all run in one go.

    Returns:
      centres [k, D], assignments int32 [N], squared distances [N], iterations.
    """
    state = _State(start, _nearest(x, start), jnp.zeros((), jnp.int32), jnp.array(True))
    done, moved = 0, True
    while moved and done < max_iterations:
        state = _iterate(x, state, max_iterations if report is None else done + 1, scatter)
        done, moved = int(state.iterations), bool(state.moved)
        if report is not None:
            report(done)
    distances = _distances(x, state.centers, state.nearest)
    return state.centers, state.nearest, distances, min(done + (not moved), max_iterations)


class _State(NamedTuple):
    """Between two iterations: centres [k, D], assignments int32 [N], iterations int32 [], whether one has changed."""

    centers: jax.Array
    nearest: jax.Array
    iterations: jax.Array
    moved: jax.Array


_nearest = jax.jit(_assign)


@jax.jit
def _distances(x: jax.Array, centers: jax.Array, nearest: jax.Array) -> jax.Array:
    """Squared distance of each point to its centre, [N]."""
    return jnp.sum((x - centers[nearest]) ** 2, axis=1)


@partial(jax.jit, static_argnames="scatter")
def _iterate(x: jax.Array, state: _State, until: int, scatter: bool) -> _State:
    """Lloyd's iterations until no assignment changes, or until so many are done.

    Args:
      x: [N, D].
      state: what was found so far.
      until: iterations, counted from the start.
      scatter: sum rows by scattering, exact in order on a CPU; elsewhere its order is not fixed, and a product with
        the assignments takes its place.
    """
    k = len(state.centers)

    def update(centers: jax.Array, nearest: jax.Array) -> jax.Array:
        if scatter:
            sums = jax.ops.segment_sum(x, nearest, k)
            counts = jax.ops.segment_sum(jnp.ones_like(x[:, 0]), nearest, k)
        else:
            sums, counts = _totals(x, nearest, k)
        means = sums / jnp.maximum(counts, 1)[:, None]

        def refill(means: jax.Array) -> jax.Array:
            """Empty clusters take the points farthest from their centres."""
            empty = counts == 0
            far = _distances(x, centers, nearest)
            order = jnp.argsort(-far, stable=True)[jnp.clip(jnp.cumsum(empty) - 1, 0, len(x) - 1)]
            replacement = jnp.where((far[order] > 0)[:, None], x[order], centers)
            return jnp.where(empty[:, None], replacement, means)

        return jax.lax.cond(jnp.any(counts == 0), refill, lambda means: means, means)

    def step(state: _State) -> _State:
        centers = update(state.centers, state.nearest)
        after = _assign(x, centers)
        return _State(centers, after, state.iterations + 1, jnp.any(after != state.nearest))

    return jax.lax.while_loop(lambda state: state.moved & (state.iterations < until), step, state)


@partial(jax.jit, static_argnames="k")
def _spread(x: jax.Array, key: jax.Array, k: int) -> jax.Array:
    """Greedy k-means++: each centre is the best of a few rows drawn by their squared distance to the chosen ones."""
    trials = 2 + int(np.log(k))
    squares = jnp.sum(x * x, axis=1)

    def squared(rows: jax.Array) -> jax.Array:
        product = jnp.matmul(rows, x.T, precision=jax.lax.Precision.HIGHEST)
        return jnp.maximum(squares[None, :] - 2 * product + jnp.sum(rows * rows, axis=1)[:, None], 0)

    def add(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        chosen, closest = carry
        # The smallest normal number keeps the draw defined where all points are chosen or equal.
        mass = jnp.cumsum(closest + jnp.finfo(x.dtype).tiny)
        aim = jax.random.uniform(jax.random.fold_in(key, i), (trials,), x.dtype) * mass[-1]
        drawn = jnp.minimum(jnp.searchsorted(mass, aim, side="right"), len(x) - 1).astype(jnp.int32)
        after = jnp.minimum(closest[None, :], squared(x[drawn]))
        winner = jnp.argmin(jnp.sum(after, axis=1))
        return chosen.at[i].set(drawn[winner]), after[winner]

    first = jax.random.randint(jax.random.fold_in(key, 0), (), 0, len(x))
    chosen = jnp.zeros((k,), jnp.int32).at[0].set(first)
    chosen, _ = jax.lax.fori_loop(1, k, add, (chosen, squared(x[first][None, :])[0]))
    return x[chosen]
