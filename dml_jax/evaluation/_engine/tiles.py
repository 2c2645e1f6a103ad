"""Embeddings in tiles, the product of two tiles, and the devices and memory for them.

A set of embeddings is cut into tiles: blocks of equally many rows, the last one padded with zeros,
so that all products have the same shape and the same rounding. A score ranks the neighbours of a
query, larger is nearer: the cosine, or -|x - y|^2 / 2 for the Euclidean distance. Both are a plain
product of prepared rows; the Euclidean one needs two more columns:

    -|x|^2 / 2 - |y|^2 / 2 + <x, y>  =  < [-|x|^2 / 2, 1, x], [1, -|y|^2 / 2, y] >

These columns come first, so that the scores of (x, y) and (y, x) round alike. Padding rows have a
score of exactly 0, so they can be subtracted from any count.

Squared distances in float64 on the host replace those of close rows. The product of two prepared
rows x and y has an error of up to about (4 + sqrt(W)) u (|x|^2 + |y|^2) / 2, where W is their width
and u the unit roundoff of their type (Higham & Mary, SIAM J. Sci. Comput. 2019; 4 for preparing
them). Far rows are ranked correctly, but rows much closer to each other than to the origin are not.
That depends on the embeddings (groups that are far apart, or a narrow cone), so it is decided for
each query.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.evaluation import validation

Metric = Literal["cosine", "euclidean"]
AnyArray = TypeVar("AnyArray", np.ndarray, jax.Array)

REPLICATED, SHARDED = P(), P("data")
# Distances are reliable where the error above is at most this fraction of their square; the usual
# error is far smaller.
RELATIVE_ERROR = 2.5e-4
RELATIVE_ERROR_IN_FLOAT64 = 5e-7
PADDING_INDEX = np.iinfo(np.int32).max  # larger than the index of any real row


def local_mesh() -> Mesh:
    """The devices of this process; in multi-process runs each process evaluates by itself."""
    return Mesh(np.array(jax.local_devices()), ("data",))


def is_cpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu"


def memory_budget(mesh: Mesh) -> int:
    """Bytes per device: 60 % of an accelerator's memory; on CPUs, 1 GiB for all devices."""
    if is_cpu(mesh):
        return (1 << 30) // mesh.size
    stats = mesh.local_devices[0].memory_stats() or {}
    return int(0.6 * stats.get("bytes_limit", 8 << 30))


def choose_tile_size(rows: int, mesh: Mesh) -> int:
    """Rows per tile that make a triangle of tiles cheapest: a multiple of 32 (CPU) or 128."""
    smallest, largest, step = (480, 1152, 32) if is_cpu(mesh) else (1024, 4096, 128)
    if rows <= largest:
        return max(32, -(-rows // step) * step)
    overhead = smallest**2 // 8  # time of a call, as a number of scores

    def cost(size: int) -> int:
        tiles = -(-rows // size)
        return tiles * (tiles + 1) * (size**2 + overhead)

    return min(range(smallest, largest + 1, step), key=cost)


class Centering(NamedTuple):
    """Shift and scale applied to raw rows before they are compared; neither changes a ranking."""

    center: np.ndarray  # float64 [D], of scaled rows
    exponent: int = 0  # rows are scaled by this power of two

    def apply(self, rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Scaled rows - center, as `dtype`; not a copy where nothing changes."""
        wide = np.float32 if rows.dtype == np.float32 else np.float64
        if self.exponent:  # the power itself may be beyond the type
            rows = np.ldexp(np.asarray(rows, wide), self.exponent)
        if self.center.any():
            rows = np.subtract(rows, self.center.astype(wide)[None, :], dtype=wide)
        return np.asarray(rows, dtype)

    def unscaled(self, values: Any, power: int = 1) -> Any:
        """Distances (or their `power`) of prepared rows as those of the rows; float64 if these were
        scaled, and infinite or 0 beyond its range."""
        if not self.exponent:
            return values
        with np.errstate(over="ignore", under="ignore"):
            return np.ldexp(np.asarray(values, np.float64), -power * self.exponent)


def choose_centering(sources: list[np.ndarray], metric: Metric) -> Centering:
    """The shift and scale that keep squared lengths accurate in float32; none for the cosine.

    Small differences between long vectors are lost in the rounding of their squared lengths, so a
    mean that accounts for four fifths of the squares is subtracted. It is rounded to a coarse
    multiple of a power of two, which keeps integer-valued rows exact. Rows are scaled if their
    squares would leave the range of float32.
    """
    width = sources[0].shape[1]
    if metric == "cosine":
        return Centering(np.zeros(width))
    blocks = [partial(validation.row_blocks, source) for source in sources]
    largest = max(float(max(x.max(), -x.min())) for source in blocks for x in source())
    moderate = largest == 0 or 2.0**-30 < largest < 2.0**30
    _, digits = math.frexp(largest)
    scaling = Centering(np.zeros(width), 0 if moderate else -digits)
    total, squares, rows = np.zeros(width), 0.0, sum(map(len, sources))
    for block in (block for source in blocks for block in source()):
        scaled = scaling.apply(block, block.dtype)
        total += scaled.sum(axis=0, dtype=np.float64)
        squares += float(np.einsum("nd,nd->n", scaled, scaled).sum(dtype=np.float64))
    mean = total / rows
    if mean @ mean <= 0.8 * squares / rows:
        return scaling
    grain = 2.0 ** (np.ceil(np.log2(math.ldexp(largest, scaling.exponent))) - 7)
    return scaling._replace(center=np.round(mean / grain) * grain)


class TiledRows(NamedTuple):
    """A set of embeddings in tiles. A row has an index in `source` and a position in `order`."""

    source: np.ndarray  # [N, D] real numbers, may be memory-mapped
    order: np.ndarray  # int [N], index of the row at each position
    tile_size: int  # rows per tile, T
    metric: Metric
    centering: Centering  # applied to Euclidean rows
    dtype: np.dtype  # prepared rows have this type

    @property
    def num_tiles(self) -> int:
        return -(-len(self.order) // self.tile_size)

    @property
    def padding(self) -> int:
        """Number of padding rows."""
        return -len(self.order) % self.tile_size

    @property
    def width(self) -> int:
        """Columns of a prepared row."""
        return self.source.shape[1] + 2 * (self.metric == "euclidean")

    def indices(self) -> np.ndarray:
        """Index of the row at each position: int32 [num_tiles, T], PADDING_INDEX for padding."""
        index = np.full(self.num_tiles * self.tile_size, PADDING_INDEX, np.int32)
        index[: len(self.order)] = self.order
        return index.reshape(self.num_tiles, self.tile_size)

    def operand(self, tiles: slice, *, right: bool) -> np.ndarray:
        """Prepared rows of some tiles, as one operand of `product`: [tiles, T, width]."""
        first, last, _ = tiles.indices(self.num_tiles)
        result = np.zeros(((last - first) * self.tile_size, self.width), self.dtype)
        wanted = self.order[first * self.tile_size : last * self.tile_size]
        for part in validation.slices(len(wanted), 4 * self.width):
            rows = result[part]
            columns = rows[:, self.width - self.source.shape[1] :]
            raw = np.asarray(self.source[wanted[part]])
            if self.metric == "cosine":
                unit = raw.astype(np.float64) if raw.dtype == np.float64 else columns
                unit[:] = raw
                normalize(unit)
                columns[:] = unit
            else:
                columns[:] = self.centering.apply(raw, self.dtype)
                half = -np.einsum("nd,nd->n", columns, columns, dtype=np.float64) / 2
                rows[:, 0], rows[:, 1] = (1, half) if right else (half, 1)
        return result.reshape(-1, self.tile_size, self.width)


def normalize(rows: np.ndarray) -> None:
    """Divides rows [N, D] by their lengths, in place; zero rows stay zero."""
    squares = np.einsum("nd,nd->n", rows, rows)
    # Squares of very long and very short rows leave the range of float32.
    for i in np.flatnonzero(~((squares > 1e-30) & (squares < 1e30))):
        rows[i] /= np.abs(rows[i]).max() or 1
        squares[i] = rows[i] @ rows[i]
    rows /= np.sqrt(np.where(squares > 0, squares, 1))[:, None]


def sortable_keys(scores: jax.Array) -> jax.Array:
    """Integers in the order of the scores, of as many bits; 0.0 and -0.0 both give 0."""
    kind = jnp.int32 if scores.dtype == jnp.float32 else jnp.int64
    bits = jax.lax.bitcast_convert_type(scores, kind)
    return jnp.where(scores == 0, 0, _flip_negative(bits))


def scores_of_keys(keys: AnyArray) -> AnyArray:
    """The inverse of `sortable_keys`; NaN for the smallest integer."""
    return _flip_negative(keys).view(np.float32 if keys.dtype == np.int32 else np.float64)


def _flip_negative(bits: AnyArray) -> AnyArray:
    """Flips all bits of negative numbers but the sign: floats are ordered like such integers."""
    return bits ^ ((bits >> (bits.dtype.itemsize * 8 - 1)) & np.iinfo(bits.dtype).max)


@partial(jax.jit, static_argnames=("mesh", "as_keys"))
def product(
    left: jax.Array, right: jax.Array, pairs: jax.Array, mesh: Mesh, as_keys: bool = False
) -> jax.Array:
    """One tile of scores, or their `sortable_keys`, on each of n devices: [n, S, T].

    Args:
      left, right: operands [p, S, W] and [q, T, W], replicated.
      pairs: int32 [n, 2], a tile of `left` and a tile of `right` for each device.
    """

    def local(left: jax.Array, right: jax.Array, pairs: jax.Array) -> jax.Array:
        a, b = left[pairs[0, 0]], right[pairs[0, 1]]
        scores = jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)[None]
        return sortable_keys(scores) if as_keys else scores

    specs = (REPLICATED, REPLICATED, SHARDED)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=SHARDED, check_vma=False)(
        left, right, pairs
    )


@partial(jax.jit, static_argnames="mesh")
def sum_over_devices(parts: jax.Array, mesh: Mesh) -> jax.Array:
    """Sum of the parts of all devices, replicated."""
    # Without a dtype, sums of int32 would be wider if 64-bit types are enabled.
    total = jnp.sum(parts, axis=0, dtype=parts.dtype)
    return jax.lax.with_sharding_constraint(total, NamedSharding(mesh, REPLICATED))


def error_bound(width: int, dtype: np.dtype) -> float:
    """Error of squared distances between rows, relative to the sum of their squared lengths."""
    return float((4 + np.sqrt(width)) * np.finfo(dtype).eps / 2)


def squared_lengths(rows: TiledRows) -> np.ndarray:
    """Squared lengths of the centred and scaled rows of the source: float [N]; 1 for the cosine."""
    if rows.metric == "cosine":
        return np.ones(len(rows.source))
    raw = validation.row_blocks(rows.source)
    blocks = (rows.centering.apply(block, rows.dtype) for block in raw)
    return np.concatenate([np.einsum("nd,nd->n", block, block) for block in blocks])


def unreliable(squares: np.ndarray, lengths: np.ndarray, error: float) -> np.ndarray:
    """Whether squared distances [N] are too small to rely on, by their `error_bound`: bool [N]."""
    return squares * RELATIVE_ERROR < error * 2 * lengths


def squared_distances(queries: TiledRows, gallery: TiledRows) -> Iterator[tuple[slice, np.ndarray]]:
    """Squared distances of the queries in `order` to all rows; of unit rows for the cosine.

    Yields:
      Slices of `queries.order`, and float [B, G], of the type and scale of prepared rows: values
      from float64 are rounded, so that equal distances are equal whatever the order of summation.
    """
    for part in validation.slices(len(queries.order), 4 * len(gallery.source)):
        left = _prepared(queries.source[queries.order[part]], queries)
        result, first = np.empty((len(left), len(gallery.source)), gallery.dtype), 0
        for block in validation.row_blocks(gallery.source):
            right, last = _prepared(block, gallery), first + len(block)
            result[:, first:last] = _between(left, right, gallery.metric == "cosine")
            first = last
        yield part, result


def distances(
    queries: TiledRows, gallery: TiledRows, row: np.ndarray, indices: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Squared distances float64 [B] of the pairs (row, index), from differences of rows.

    The cosine with a zero row is 0, so its squared distance is 2 although it has no unit length.
    """
    for part in validation.slices(len(row), 8 * queries.source.shape[1]):
        left = _prepared(queries.source[row[part]], queries)
        right = _prepared(gallery.source[indices[part]], gallery)
        zero = ~left.any(axis=1) | ~right.any(axis=1)
        left -= right
        squares = np.einsum("nd,nd->n", left, left)
        yield part, np.where(zero, 2.0, squares) if queries.metric == "cosine" else squares


def _between(left: np.ndarray, right: np.ndarray, unit: bool) -> np.ndarray:
    """Squared distances float64 [Q, G] of prepared rows; small ones from differences of rows."""
    squares = left @ right.T
    lengths = 2.0 if unit else (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None]
    squares *= -2
    squares += lengths
    error = error_bound(left.shape[1], left.dtype)
    row, column = np.nonzero(squares * RELATIVE_ERROR_IN_FLOAT64 < error * lengths)
    for part in validation.slices(len(row), 8 * left.shape[1]):
        i, j = row[part], column[part]
        squares[i, j] = np.sum((left[i] - right[j]) ** 2, axis=1)
    return squares


def _prepared(raw: np.ndarray, rows: TiledRows) -> np.ndarray:
    """Rows of the source as float64: of unit length for the cosine, else centred and scaled."""
    if rows.metric == "euclidean":
        return np.array(rows.centering.apply(np.asarray(raw, np.float64), np.dtype(np.float64)))
    unit = np.array(raw, np.float64)
    normalize(unit)
    return unit
