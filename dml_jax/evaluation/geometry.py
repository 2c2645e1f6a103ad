"""Statistics of an embedding space: density, spectral decay, effective rank, uniformity and alignment."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from dml_jax.evaluation import check_inputs
from dml_jax.evaluation._engine import tiles
from dml_jax.evaluation.check_inputs import ArrayLike


def density(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Mean intra-class over mean inter-class cosine distance (Roth et al., ICML 2020), in NumPy float64.

    Intra-class: mean over the pairs of different rows of a class, then over the classes with at least two rows.
    Inter-class: mean over pairs of classes of the distance between their mean rows.

    Args:
      embeddings: [N, D] real numbers, any norm.
      labels: int [N].

    Returns:
      The ratio; NaN if no class has two rows or there is only one class.
    """
    points = check_inputs.embeddings(embeddings)
    _, members, sizes = np.unique(check_inputs.labels(labels, len(points)), return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        return float("nan")
    sums, unit_sums = (np.zeros((len(sizes), points.shape[1])) for _ in range(2))
    unit_squares = np.zeros(len(sizes))
    for part, block in _float64_blocks(points):
        directions = _unit_rows(block)
        np.add.at(sums, members[part], block)
        np.add.at(unit_sums, members[part], directions)
        np.add.at(unit_squares, members[part], np.sum(directions**2, axis=1))
    # The sum of the cosines over ordered pairs of different rows is |sum|^2 - sum of the squares.
    several = sizes >= 2
    cosines = (np.sum(unit_sums**2, axis=1) - unit_squares)[several]
    intra = float(np.mean(1 - cosines / (sizes * (sizes - 1.0))[several]))
    centers = _unit_rows(sums / sizes[:, None])
    pairs = len(sizes) * (len(sizes) - 1.0)
    inter = 1 - float(np.sum(np.sum(centers, axis=0) ** 2) - np.sum(centers**2)) / pairs
    return intra / max(inter, 1e-8)


def singular_values(embeddings: ArrayLike) -> np.ndarray:
    """Singular values of the embedding matrix, not centred: float64 [min(N, D)], largest first."""
    points = check_inputs.embeddings(embeddings)
    # Stacked QR decompositions keep small values accurate, unlike the eigenvalues of X'X.
    factor = np.zeros((0, points.shape[1]))
    for _, block in _float64_blocks(points):
        factor = np.asarray(np.linalg.qr(np.concatenate([factor, block]), mode="r"))
    return np.linalg.svd(factor, compute_uv=False)[: min(points.shape)]


def spectral_decay(embeddings: ArrayLike) -> float:
    """rho = KL(uniform || s / sum(s)) over the singular values s, in nats (Roth et al., ICML 2020).

    Lower values mean that the variance is spread over more directions. Shares below 1e-12 count as 1e-12, so that
    unused directions leave rho finite; NaN if all rows are zero.

    Args:
      embeddings: [N, D] real numbers; neither centred nor normalised here.
    """
    return decay_of_spectrum(singular_values(embeddings))


def decay_of_spectrum(values: np.ndarray) -> float:
    """rho of a matrix with singular values float [K]; see `spectral_decay`."""
    if values[0] == 0:
        return float("nan")
    share = np.maximum(values / values.sum(), 1e-12)
    return float(-np.log(len(values)) - np.mean(np.log(share)))


def effective_rank(embeddings: ArrayLike) -> float:
    """exp of the entropy of s / sum(s) over the singular values s (Roy & Vetterli, EUSIPCO 2007).

    Args:
      embeddings: [N, D] real numbers; neither centred nor normalised here.

    Returns:
      From 1 (all rows are multiples of one vector; also if all are zero) to min(N, D).
    """
    return rank_of_spectrum(singular_values(embeddings))


def rank_of_spectrum(values: np.ndarray) -> float:
    """Effective rank of a matrix with singular values float [K], largest first; see `effective_rank`."""
    if values[0] == 0:
        return 1.0
    share = values / values.sum()
    return float(np.exp(-np.sum(share * np.log(np.where(share > 0, share, 1)))))


def alignment(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Mean of |x_i - x_j|^2 over the pairs i != j of one class, for unit rows (Wang & Isola, ICML 2020, eq. 1).

    Args:
      embeddings: [N, D] real numbers; normalised here.
      labels: int [N].

    Returns:
      From 0 (every class is a point) to 4; NaN if no class has two rows.
    """
    points = check_inputs.embeddings(embeddings)
    _, members, sizes = np.unique(check_inputs.labels(labels, len(points)), return_inverse=True, return_counts=True)
    pairs = float(np.sum(sizes * (sizes - 1.0)))
    if pairs == 0:
        return float("nan")
    sums, squares = np.zeros((len(sizes), points.shape[1])), np.zeros(len(sizes))
    for part, block in _float64_blocks(points):
        directions = _unit_rows(block)
        np.add.at(sums, members[part], directions)
        np.add.at(squares, members[part], np.sum(directions**2, axis=1))
    # Over the ordered pairs of a class, i = j included, |x_i - x_j|^2 sums to 2 n sum |x_i|^2 - 2 |sum x_i|^2.
    total = float(np.sum(2 * sizes * squares - 2 * np.sum(sums**2, axis=1)))
    return max(total, 0.0) / pairs


def uniformity(embeddings: ArrayLike, *, sharpness: float = 2.0) -> float:
    """log of the mean over pairs i != j of exp(-t |x_i - x_j|^2) for unit rows (Wang & Isola, ICML 2020, eq. 2).

    Args:
      embeddings: [N, D] real numbers, N >= 2; normalised here, where zero rows stay zero.
      sharpness: t.

    Returns:
      At most 0 (all rows equal); lower values mean that the rows cover the sphere more evenly.
    """
    points = check_inputs.embeddings(embeddings)
    mesh = tiles.local_mesh()
    tile_size = tiles.choose_tile_size(len(points), mesh)
    centering = tiles.choose_centering([points], "cosine")
    dtype = check_inputs.compute_dtype(points)
    rows = tiles.TiledRows(points, np.arange(len(points)), tile_size, "cosine", centering, dtype)
    panel_tiles = max(1, tiles.memory_budget(mesh) // 4 // (tile_size * rows.width * dtype.itemsize))
    replicated = NamedSharding(mesh, tiles.REPLICATED)
    total = 0.0
    for j in range(0, rows.num_tiles, panel_tiles):
        right = jax.device_put(rows.operand(slice(j, j + panel_tiles), right=True), replicated)
        for i in range(0, j + 1, panel_tiles):
            left = right
            if i != j:
                left = jax.device_put(rows.operand(slice(i, i + panel_tiles), right=False), replicated)
            pairs = [(a, b) for b in range(len(right)) for a in range(b + 1 if i == j else len(left))]
            for start in range(0, len(pairs), mesh.size):
                batch = pairs[start : start + mesh.size]
                idle = [batch[0]] * (mesh.size - len(batch))
                scores = tiles.product(left, right, np.array(batch + idle, np.int32), mesh)
                first = np.array([[i + a, j + b] for a, b in batch] + [[0, rows.num_tiles]] * len(idle), np.int32)
                first *= tile_size
                total += float(np.sum(np.asarray(_potential(scores, first, len(points), sharpness), np.float64)))
    # A zero row is at squared distance 1 from unit rows and 0 from zero rows; all its pairs were counted as 2.
    zeros = int(sum(np.sum(~block.any(axis=1)) for block in check_inputs.row_blocks(points)))
    far, middle = np.exp(-2 * sharpness), np.exp(-sharpness)
    total += zeros * (len(points) - zeros) * (middle - far) + zeros * (zeros - 1) / 2 * (1 - far)
    return float(np.log(2 * total / (len(points) * (len(points) - 1.0))))


@partial(jax.jit, static_argnames="sharpness")
def _potential(scores: jax.Array, first: jax.Array, rows: int, sharpness: float) -> jax.Array:
    """Sums exp(-t |x_i - x_j|^2) over pairs i < j < `rows` of cosine tiles [n, T, T] that start at `first`: [n, T]."""
    offset = jnp.arange(scores.shape[1], dtype=jnp.int32)
    row = (first[:, :1] + offset[None, :])[:, :, None]
    column = (first[:, 1:] + offset[None, :])[:, None, :]
    counted = (row < column) & (column < rows)
    squares = jnp.maximum(2 - 2 * scores, 0)
    return jnp.sum(jnp.where(counted, jnp.exp(-sharpness * squares), 0), axis=1)


def _float64_blocks(rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields consecutive blocks of rows in float64, with their positions."""
    step = max(1, check_inputs.BLOCK_ELEMENTS // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        yield part, np.asarray(rows[part], np.float64)


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows [N, D] divided by their lengths; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)
