"""Embeddings laid out in tiles: equal blocks of rows, so that every product has one shape and one rounding.

A score is what a neighbour is ranked by, larger is nearer: the cosine, or -|x - y|^2 / 2 for the Euclidean distance.
Both are one plain product of prepared rows, the Euclidean one thanks to two more columns:

    -|x|^2 / 2 - |y|^2 / 2 + <x, y>  =  < [-|x|^2 / 2, 1, x], [1, -|y|^2 / 2, y] >

These columns come first, so that x with y rounds as y with x.

Rows that only fill the last tile are zero, so their score is exactly 0 and can be subtracted from any count.
"""

from typing import Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from dml_jax.evaluation import validation

Metric = Literal["cosine", "euclidean"]

FILLER = np.iinfo(np.int32).max  # the index of rows that only fill a tile: behind every real one


def mesh() -> Mesh:
    """The devices of this process in one row: each process of several judges for itself."""
    return Mesh(np.array(jax.local_devices()), ("data",))


def edge(rows: int, mesh: Mesh) -> int:
    """Rows of a tile: a multiple of 32 (128) for which a triangle of tiles wastes little and each is worth a call."""
    low, high, step = (480, 1152, 32) if on_cpu(mesh) else (1024, 4096, 128)
    if rows <= high:
        return max(32, -(-rows // step) * step)
    sizes = range(low, high + 1, step)
    overhead = low * low // 8
    return min(sizes, key=lambda t: (lambda m: m * (m + 1) * (t * t + overhead))(-(-rows // t)))


def on_cpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu"


def memory(mesh: Mesh) -> int:
    """Bytes that one device may use: 60 % of an accelerator's memory, and 1 GiB shared by all devices of a CPU."""
    if on_cpu(mesh):
        return (1 << 30) // mesh.size
    stats = mesh.local_devices[0].memory_stats() or {}
    return int(0.6 * stats.get("bytes_limit", 8 << 30))


class Frame(NamedTuple):
    """What is taken off raw rows before they are compared: nothing changes a cosine or a Euclidean ranking by it.

    Attributes:
      center: float64 [D]; scale: a power of two.
    """

    center: np.ndarray
    scale: float

    def enter(self, rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """(rows - center) * scale, as `dtype`; the rows themselves where nothing changes."""
        if not self.center.any() and self.scale == 1:
            return np.asarray(rows, dtype)
        wide = np.dtype(np.float32 if rows.dtype == np.float32 else np.float64)
        result = np.subtract(rows, self.center.astype(wide)[None, :], dtype=wide)
        result = np.multiply(result, wide.type(self.scale), out=result)
        return result.astype(dtype, copy=False)


def frame(sources: list[np.ndarray], metric: Metric) -> Frame:
    """What to take off: nothing for the cosine.

    Small differences between long vectors drown in the rounding of their squared lengths, so a mean that makes up
    four fifths of the squares is taken off, to a coarse multiple of a power of two: rows on a lattice stay exact.
    Numbers whose squares would leave the range of float32 are scaled.
    """
    width = sources[0].shape[1]
    if metric == "cosine":
        return Frame(np.zeros(width), 1.0)
    largest = max(float(max(block.max(), -block.min())) for source in sources for block in validation.blocks(source))
    scale = 1.0 if 2.0**-30 < largest < 2.0**30 or largest == 0 else float(2.0 ** -np.ceil(np.log2(largest)))
    total, squares, rows = np.zeros(width), 0.0, sum(len(source) for source in sources)
    for source in sources:
        for block in validation.blocks(source):
            scaled = block if scale == 1 else block * block.dtype.type(scale)
            total += scaled.sum(axis=0, dtype=np.float64)
            squares += float(np.einsum("nd,nd->n", scaled, scaled).sum(dtype=np.float64))
    mean = total / rows
    if mean @ mean <= 0.8 * squares / rows:
        return Frame(np.zeros(width), scale)
    grain = 2.0 ** (np.ceil(np.log2(largest * scale)) - 7)
    return Frame(np.round(mean / grain) * grain / scale, scale)


class Rows(NamedTuple):
    """One set of embeddings in tiles.

    Attributes:
      source: [N, D], as it came (memory-mapped, perhaps).
      order: int [N], place in the tiles -> row of the source.
      edge: rows of a tile.
      metric, frame: how rows are prepared.
      dtype: of the prepared rows.
    """

    source: np.ndarray
    order: np.ndarray
    edge: int
    metric: Metric
    frame: Frame
    dtype: np.dtype

    @property
    def tiles(self) -> int:
        return -(-len(self.order) // self.edge)

    @property
    def fillers(self) -> int:
        return self.tiles * self.edge - len(self.order)

    @property
    def width(self) -> int:
        """Columns of a prepared row."""
        return self.source.shape[1] + 2 * (self.metric == "euclidean")

    def indices(self) -> np.ndarray:
        """Row of the source at each place: int32 [tiles, edge], FILLER where there is none."""
        index = np.full(self.tiles * self.edge, FILLER, np.int32)
        index[: len(self.order)] = self.order
        return index.reshape(self.tiles, self.edge)

    def prepared(self, panel: slice, *, right: bool) -> np.ndarray:
        """Some tiles, ready to be multiplied: [tiles, edge, width]. `right`: for the second factor."""
        first, last, _ = panel.indices(self.tiles)
        result = np.zeros(((last - first) * self.edge, self.width), self.dtype)
        wanted = self.order[first * self.edge : last * self.edge]
        step = max(1, validation.ROWS_AT_ONCE // (4 * self.width))
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step]
            rows = result[start : start + len(part)]
            columns = rows[:, self.width - self.source.shape[1] :]
            taken = np.asarray(self.source[part])
            if self.metric == "cosine":
                columns[:] = taken
                normalize(columns)
            else:
                columns[:] = self.frame.enter(taken, self.dtype)
                half = -np.einsum("nd,nd->n", columns, columns, dtype=np.float64) / 2
                rows[:, 0], rows[:, 1] = (1, half) if right else (half, 1)
        return result.reshape(-1, self.edge, self.width)


def normalize(rows: np.ndarray) -> None:
    """Divides rows [N, D] by their lengths, in place; zero rows stay zero."""
    squares = np.einsum("nd,nd->n", rows, rows)
    # Squares of very long and very short rows leave the range of float32.
    for i in np.flatnonzero(~((squares > 1e-30) & (squares < 1e30))):
        rows[i] /= np.abs(rows[i]).max() or 1
        squares[i] = rows[i] @ rows[i]
    rows /= np.sqrt(np.where(squares > 0, squares, 1))[:, None]
