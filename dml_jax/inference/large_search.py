"""Exact neighbours of more embeddings than a machine holds, from the Parquet files of `dml-jax
embed`.

Rows are numbered with 64 bits, in the order of the files' names and without unusable images. A
block of queries reads the gallery block by block, so a process holds one block of each, however
many rows there are. Candidates of different blocks are compared by squared distances that are
computed in float64 and rounded to float32, as `neighbors.search` does where rounding could decide:
the neighbours are the same.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dml_jax import buckets
from dml_jax.console import Console
from dml_jax.errors import DataError
from dml_jax.evaluation import neighbors
from dml_jax.files import expand_path, is_url
from dml_jax.inference import embedding_shards, ray_engine

QUERIES = 2**10, 2**16  # smallest and largest number of queries in a block
BLOCKS = 64  # of queries, as far as these sizes allow
GALLERY_BYTES = 2**26  # of a block of the gallery
BATCH = 2**13  # rows that are decoded at a time
REMEDY = "embed the images again"

Rows = tuple[np.ndarray, np.ndarray]  # numbers int64 [N] and embeddings float32 [N, D]


class Table(NamedTuple):
    """The Parquet files of a set of embeddings."""

    files: tuple[str, ...]  # paths or URLs, by name
    rows: tuple[int, ...]  # usable ones of each file
    dimensions: int

    def blocks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The usable rows from `start` to `stop`, `size` at a time; the last block may be
        smaller."""
        held: list[np.ndarray] = []
        for batch in self._batches(start, sum(self.rows) if stop is None else stop):
            while (missing := size - sum(map(len, held))) <= len(batch):
                yield np.arange(start, start + size), np.concatenate([*held, batch[:missing]])
                batch, held, start = batch[missing:], [], start + size
            if len(batch):  # an empty view would keep its batch in memory
                held.append(batch)
        if rows := sum(map(len, held)):
            yield np.arange(start, start + rows), np.concatenate(held)

    def _batches(self, start: int, stop: int) -> Iterator[np.ndarray]:
        end = 0
        for file, count in zip(self.files, self.rows, strict=True):
            first, end = end, end + count
            if first >= stop or end <= start:
                continue
            with embedding_shards.opened_file(file, REMEDY) as opened:
                for batch in opened.iter_batches(BATCH, columns=["embedding"]):
                    rows = embedding_shards.rows_of(batch.column(0))
                    inside = slice(max(0, start - first), max(0, stop - first))
                    yield rows[inside]
                    first += len(rows)


def table(directory: str, option: str) -> Table:
    """The embeddings in a directory of Parquet files, as `dml-jax embed` writes it, or below a
    URL."""
    names: Iterable[str]
    if is_url(directory):
        where = directory.rstrip("/")
        names = map(quote, buckets.list_files(where))
    else:
        where = str(expand_path(option, directory).resolve())
        names = [path.name for path in Path(where).glob("*")]
    files = tuple(sorted(f"{where}/{name}" for name in names if name.endswith(".parquet")))
    if not files:
        raise DataError(
            f"{option}={directory}: holds no Parquet files; give the directory NAME.parquet of "
            "dml-jax embed"
        )
    rows, widths = [], set()
    for file in files:
        with embedding_shards.opened_file(file, REMEDY) as opened:
            rows.append(opened.metadata.num_rows - embedding_shards.unusable_in(opened))
            widths.add(embedding_shards.dimensions_of(opened))
    if len(widths) > 1:
        raise DataError(
            f"{option}={directory}: holds embeddings of {sorted(widths)} dimensions; give those "
            "of one model"
        )
    return Table(files, tuple(rows), widths.pop())


def nearest(
    queries: Rows, gallery: Iterable[Rows], k: int, alone: bool, most: tuple[int, int]
) -> Rows:
    """The k nearest gallery rows of each query: numbers int64 [Q, k] and squared distances of unit
    rows [Q, k].

    Args:
      gallery: blocks of rows. Where there are fewer rows than k, the last numbers are -1.
      alone: the queries search each other, and no query finds the row with its number.
      most: the largest numbers of queries and of gallery rows in a block.
    """
    numbers, rows = queries
    squares = np.full((len(rows), k), np.inf, np.float32)
    found = np.full((len(rows), k), -1)
    for candidates, block in gallery:
        depth = min(k + alone, len(block))
        nearer, indices = neighbors.nearer(rows, block, depth, squares[:, -1], most)
        indices = candidates[indices]
        nearer[alone & (indices == numbers[:, None])] = np.inf
        squares = np.concatenate([squares, nearer], axis=1)
        found = np.concatenate([found, indices], axis=1)
        order = np.lexsort((found, squares), axis=1)[:, :k]
        squares = np.take_along_axis(squares, order, axis=1)
        found = np.take_along_axis(found, order, axis=1)
    return np.where(np.isfinite(squares), found, -1), squares


class Plan(NamedTuple):
    """A search by blocks of queries."""

    queries: Table
    gallery: Table | None  # None if the queries search each other
    k: int

    @property
    def size(self) -> int:
        """Rows of a block of queries."""
        return int(np.clip(-(-sum(self.queries.rows) // BLOCKS), *QUERIES))

    def description(self) -> dict[str, Any]:
        """Identity of the result, for `embedding_shards.opened`."""
        tables = [
            [[file.rpartition("/")[2] for file in each.files], each.rows, each.dimensions]
            for each in (self.queries, self.gallery)
            if each is not None
        ]
        digest = hashlib.sha256(json.dumps(tables).encode()).hexdigest()
        parts = -(-sum(self.queries.rows) // self.size)
        return {"parts": parts, "inputs_sha256": digest, "k": self.k}

    def search(self, number: int, file: Path) -> None:
        """Writes the neighbours of a block of queries: columns `neighbors` (row numbers) and
        `distances`."""
        gallery, start = self.gallery or self.queries, number * self.size
        most = self.size, GALLERY_BYTES // 4 // gallery.dimensions
        (queries,) = self.queries.blocks(self.size, start, start + self.size)
        alone = self.gallery is None
        found, squares = nearest(queries, gallery.blocks(most[1]), self.k, alone, most)
        columns = {
            "neighbors": pa.FixedSizeListArray.from_arrays(pa.array(found.ravel()), self.k),
            "distances": pa.FixedSizeListArray.from_arrays(pa.array(squares.ravel() / 2), self.k),
        }
        with buckets.written(file) as draft:
            parquet.write_table(pa.table(columns), draft)


def search(
    plan: Plan, directory: Path, address: str | None, console: Console
) -> Iterator[np.ndarray]:
    """Row numbers of the neighbours, int64 [Q, k] of each block, after tasks of Ray have written
    the missing blocks.

    The directory holds the blocks; `console` shows the progress.
    """
    with embedding_shards.opened(directory, plan.description()) as out:
        missing = [(number, out.file(number)) for number in out.missing()]
        if missing:
            before = out.count - len(missing)
            console.start_progress("blocks of queries", out.count, before)
            results = ray_engine.run(address, Plan.search, plan, missing)
            for done, _ in enumerate(results, before + 1):
                console.update_progress(done, f"{done / out.count:.0%}")
        for number in range(out.count):
            with embedding_shards.opened_file(out.file(number), REMEDY) as opened:
                yield embedding_shards.rows_of(
                    opened.read(["neighbors"])["neighbors"].combine_chunks()
                )
