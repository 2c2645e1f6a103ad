"""Statistics of an embedding space: density, spectral decay, effective rank, uniformity, alignment, errors of pairs."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs
from dml_jax.evaluation._engine.tiles import normalize
from dml_jax.evaluation.check_inputs import ArrayLike
from dml_jax.evaluation.open_set import unit_rows

PAIRS = 1 << 24  # whose distances are in memory at once
PAIR_BLOCK = 512  # rows compared at once
PAIRED = 10_000  # rows sampled
FALSE_MATCH_RATES = (0.01, 0.001)


def density(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Mean intra-class over mean inter-class cosine distance (Roth et al., ICML 2020), in NumPy float64.

    Intra-class: mean over the pairs of different rows of a class, then over the classes with at least two rows.
    Inter-class: mean over pairs of classes of the distance between their mean rows.
    NaN if no class has two rows or there is only one class.
    """
    sums, unit_sums, unit_squares, sizes = _class_sums(embeddings, labels)
    if len(sizes) < 2 or sizes.max() < 2:
        return float("nan")
    # The sum of the cosines over ordered pairs of different rows is |sum|^2 - sum of the squares.
    several = sizes >= 2
    cosines = (np.sum(unit_sums**2, axis=1) - unit_squares)[several]
    intra = float(np.mean(1 - cosines / (sizes * (sizes - 1.0))[several]))
    centers = unit_rows(sums / sizes[:, None])
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
    """
    values = singular_values(embeddings)
    if values[0] == 0:
        return float("nan")
    share = np.maximum(values / values.sum(), 1e-12)
    return float(-np.log(len(values)) - np.mean(np.log(share)))


def effective_rank(embeddings: ArrayLike) -> float:
    """exp of the entropy of s / sum(s) over the singular values s (Roy & Vetterli, EUSIPCO 2007).

    From 1 (all rows are multiples of one vector; also if all are zero) to min(N, D).
    """
    values = singular_values(embeddings)
    if values[0] == 0:
        return 1.0
    share = values / values.sum()
    return float(np.exp(-np.sum(share * np.log(np.where(share > 0, share, 1)))))


def alignment(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Mean of |x_i - x_j|^2 over the pairs i != j of one class, for unit rows (Wang & Isola, ICML 2020, eq. 1).

    From 0 (every class is a point) to 4; NaN if no class has two rows. Rows are normalised here.
    """
    _, sums, squares, sizes = _class_sums(embeddings, labels)
    pairs = float(np.sum(sizes * (sizes - 1.0)))
    if pairs == 0:
        return float("nan")
    # Over the ordered pairs of a class, i = j included, |x_i - x_j|^2 sums to 2 n sum |x_i|^2 - 2 |sum x_i|^2.
    total = float(np.sum(2 * sizes * squares - 2 * np.sum(sums**2, axis=1)))
    return max(total, 0.0) / pairs


def uniformity(embeddings: ArrayLike, *, sharpness: float = 2.0) -> float:
    """log of the mean over pairs i != j of exp(-t |x_i - x_j|^2) for unit rows (Wang & Isola, ICML 2020, eq. 2).

    At most 0 (all rows equal); lower values mean that the rows cover the sphere more evenly. There must be two rows or
    more; they are normalised here, where zero rows stay zero. `sharpness` is t.
    """
    points = check_inputs.embeddings(embeddings)
    dtype = check_inputs.compute_dtype(points)
    rows = jnp.asarray(np.concatenate([unit_rows(block) for _, block in _float64_blocks(points)]), dtype)
    step = max(1, PAIRS // len(rows))
    total = sum(
        float(np.sum(np.asarray(_potential(rows[start : start + step], rows, start, sharpness), np.float64)))
        for start in range(0, len(rows), step)
    )
    return float(np.log(2 * total / (len(points) * (len(points) - 1.0))))


@jax.jit
def _potential(block: jax.Array, rows: jax.Array, start: int, sharpness: float) -> jax.Array:
    """Sums exp(-t |x_i - x_j|^2) over the rows j > i, for each row i of a block that begins at row `start`: [B]."""
    later = jnp.arange(len(rows))[None] > start + jnp.arange(len(block))[:, None]
    product = jnp.matmul(block, rows.T, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.sum(block * block, axis=1)[:, None] + jnp.sum(rows * rows, axis=1)[None] - 2 * product
    return jnp.sum(jnp.where(later, jnp.exp(-sharpness * jnp.maximum(squares, 0)), 0), axis=1)


def _class_sums(embeddings: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """By class: sums of rows and of unit rows [C, D], sums of the squared lengths of unit rows [C], and sizes [C]."""
    points = check_inputs.embeddings(embeddings)
    _, members, sizes = np.unique(check_inputs.labels(labels, len(points)), return_inverse=True, return_counts=True)
    sums, unit_sums = np.zeros((2, len(sizes), points.shape[1]))
    unit_squares = np.zeros(len(sizes))
    for part, block in _float64_blocks(points):
        directions = unit_rows(block)
        np.add.at(sums, members[part], block)
        np.add.at(unit_sums, members[part], directions)
        np.add.at(unit_squares, members[part], np.sum(directions**2, axis=1))
    return sums, unit_sums, unit_squares, sizes


def _float64_blocks(rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields consecutive blocks of rows in float64, with their positions."""
    step = max(1, check_inputs.BLOCK_ELEMENTS // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        yield part, np.asarray(rows[part], np.float64)


class Verification(NamedTuple):
    """Error rates of the rule "same class if the cosine reaches the threshold"."""

    thresholds: np.ndarray  # float64 [T], cosines, ascending
    false_accepts: np.ndarray  # float64 [T], fraction of pairs of different classes that reach the threshold
    false_rejects: np.ndarray  # float64 [T], fraction of pairs of the same class that do not
    equal_error_rate: float  # where the two curves cross
    threshold: float  # the cosine at which they cross

    def lowest(self, target: float) -> int:
        """Index of the lowest threshold whose false accept rate does not exceed the target."""
        return int(np.argmax(self.false_accepts <= target))


def pair_errors(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """ "equal_error_rate" and its cosine, "equal_error_cosine"; and "fnmr@F" for each F of `FALSE_MATCH_RATES`."""
    rates = error_rates(embeddings, labels)
    found = {"equal_error_rate": rates.equal_error_rate, "equal_error_cosine": rates.threshold}
    return found | {f"fnmr@{rate}": float(rates.false_rejects[rates.lowest(rate)]) for rate in FALSE_MATCH_RATES}


def error_rates(embeddings: np.ndarray, labels: np.ndarray, *, bins: int = 4000) -> Verification:
    """Error rates over all pairs of at most `PAIRED` random rows, from a histogram of their cosines.

    There must be at least one pair of the same class and one of different classes. Embeddings [N, D] may be of any
    length; thresholds are exact to 2 / bins.
    """
    points = check_inputs.embeddings(embeddings)
    labels = check_inputs.labels(labels, len(points))
    if len(points) > PAIRED:
        chosen = np.random.default_rng(0).permutation(len(points))[:PAIRED]
        points, labels = points[chosen], labels[chosen]
    unit = points.astype(np.float64)
    normalize(unit)
    rows = unit.astype(np.float32)
    edges = np.linspace(-1, 1, bins + 1)
    same, different = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    for start in range(0, len(rows), PAIR_BLOCK):
        block = rows[start : start + PAIR_BLOCK]
        cosines = block @ rows[start:].T
        once = np.arange(cosines.shape[1])[None, :] > np.arange(len(block))[:, None]  # each unordered pair
        equal = labels[start : start + PAIR_BLOCK, None] == labels[None, start:]
        bin_of = np.clip(((cosines + 1) * (bins / 2)).astype(np.int64), 0, bins - 1)
        same += np.bincount(bin_of[once & equal], minlength=bins)
        different += np.bincount(bin_of[once & ~equal], minlength=bins)
    if not same.any() or not different.any():
        raise DataError("labels: need at least one pair of the same class and one pair of different classes")
    rejects = np.concatenate([[0], np.cumsum(same)]) / same.sum()
    # A single division, so that a rate of 1 in 100 is exactly the float 0.01 of `lowest`.
    accepts = np.concatenate([np.cumsum(different[::-1])[::-1], [0]]) / different.sum()
    crossing = int(np.argmax(rejects >= accepts))
    return Verification(
        thresholds=edges,
        false_accepts=accepts,
        false_rejects=rejects,
        equal_error_rate=float((rejects[crossing] + accepts[crossing]) / 2),
        threshold=float(edges[crossing]),
    )
