"""Exact neighbours of more embeddings than a machine holds.

The rows are memory-mapped, and a block of queries reads the gallery block by block, so a process
holds one block of each, however many rows there are. Candidates of different blocks are compared by
squared distances that are computed in float64 and rounded to float32, as `neighbors.search` does
where rounding could decide: the neighbours are the same.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_jax import seal
from dml_jax.console import Console
from dml_jax.errors import DataError
from dml_jax.evaluation import neighbors, validation
from dml_jax.files import expand_path, sha256
from dml_jax.inference import ray_engine

MEMORY = 2**31  # bytes that a block of queries takes at most: each reads the whole gallery once
SMALLEST, BLOCKS = 2**10, 16  # queries in a block, and blocks for as many machines, if both fit
NEIGHBOUR = 70  # bytes of a query for each of its neighbours: 61 to 70 were measured
GALLERY_BYTES = 2**26  # of a block of the gallery
KIND = "neighbours"

Rows = tuple[np.ndarray, np.ndarray]  # numbers int64 [N] and embeddings float32 [N, D]


class Array(NamedTuple):
    """Embeddings in a `.npy` file."""

    file: str  # an absolute path, which every machine sees
    sha256: str
    shape: tuple[int, ...]

    def blocks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The rows from `start` to `stop`, `size` at a time; the last block may be smaller."""
        rows = np.load(self.file, mmap_mode="r")[:stop]
        for first in range(start, len(rows), size):
            block = np.array(rows[first : first + size], np.float32)
            yield np.arange(first, first + len(block)), block


def array(option: str, path: str) -> Array:
    """The embeddings in a file; DataError if it has none, or has changed since it was sealed."""
    file = expand_path(option, path).resolve()
    rows = validation.embeddings(validation.load(file, name=option), name=option)
    stated = seal.read_manifest(file.parent).files if seal.sealed(file.parent) else {}
    digest = sha256(file)
    if stated.get(file.name, {}).get("sha256", digest) != digest:
        raise DataError(f"{option}={path}: has changed since it was written; {seal.REMEDY}")
    return Array(str(file), digest, rows.shape)


def nearest(
    queries: Rows, gallery: Iterable[Rows], k: int, alone: bool, most: tuple[int, int]
) -> Rows:
    """The k nearest gallery rows of each query: numbers int64 [Q, k] and squared distances of unit
    rows [Q, k].

    Args:
      gallery: blocks of rows. Where there are fewer rows than k, the last numbers are -1.
      alone: the queries search each other, and a query and the row of its number are no pair.
      most: the largest numbers of queries and of gallery rows in a block.
    """
    numbers, rows = queries
    squares = np.full((len(rows), k), np.inf, np.float32)
    neighbours = np.full((len(rows), k), -1)
    for candidates, block in gallery:
        depth = min(k + alone, len(block))
        nearer, indices = neighbors.nearer(rows, block, depth, squares[:, -1], most)
        indices = candidates[indices]
        nearer[alone & (indices == numbers[:, None])] = np.inf
        squares = np.concatenate([squares, nearer], axis=1)
        neighbours = np.concatenate([neighbours, indices], axis=1)
        order = np.lexsort((neighbours, squares), axis=1)[:, :k]
        squares = np.take_along_axis(squares, order, axis=1)
        neighbours = np.take_along_axis(neighbours, order, axis=1)
    return np.where(np.isfinite(squares), neighbours, -1), squares


class Plan(NamedTuple):
    """A search by blocks of queries."""

    queries: Array
    gallery: Array | None  # None if the queries search each other
    k: int

    @property
    def size(self) -> int:
        """Rows of a block of queries: as many as their memory allows, so that the gallery is read
        as rarely as possible."""
        count, width = self.queries.shape
        most = max(1, MEMORY // (8 * width + NEIGHBOUR * self.k))  # with a copy on the device
        return min(most, max(SMALLEST, -(-count // BLOCKS)))

    @property
    def digest(self) -> str:
        """What the result follows from: the parent of each block."""
        facts = self.queries.sha256, self.gallery and self.gallery.sha256, self.k, self.size
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def search(self, number: int, directory: Path) -> None:
        """Writes the neighbours of a block of queries: `neighbors.npy` (row numbers, int64 [Q, k])
        and `distances.npy`."""
        gallery, start = self.gallery or self.queries, number * self.size
        most = self.size, GALLERY_BYTES // 4 // gallery.shape[1]
        (queries,) = self.queries.blocks(self.size, start, start + self.size)
        alone = self.gallery is None
        neighbours, squares = nearest(queries, gallery.blocks(most[1]), self.k, alone, most)
        with seal.write(directory, KIND, parent=self.digest) as draft:
            np.save(draft / "neighbors.npy", neighbours)
            np.save(draft / "distances.npy", squares / 2)


def search(
    plan: Plan, directory: Path, address: str | None, console: Console
) -> Iterator[np.ndarray]:
    """Row numbers of the neighbours, int64 [Q, k] of each block, after tasks of Ray have written
    the missing blocks.

    The directory holds the blocks; `console` shows the progress. Raises DataError if it holds those
    of another search.
    """
    count = -(-plan.queries.shape[0] // plan.size)
    blocks = [directory.resolve() / f"{number:06d}" for number in range(count)]
    remedy = "delete it, or give another --export"
    for block in filter(seal.sealed, blocks):
        seal.read(block, KIND, parent=plan.digest, remedy=remedy)
    missing = [item for item in enumerate(blocks) if not seal.sealed(item[1])]
    if missing:
        before = count - len(missing)
        console.start_progress("blocks of queries", count, before)
        results = ray_engine.run(address, Plan.search, plan, missing)
        for done, _ in enumerate(results, before + 1):
            console.update_progress(done, f"{done / count:.0%}")
    for block in blocks:
        seal.read(block, KIND, parent=plan.digest, remedy=remedy)
        yield np.load(block / "neighbors.npy")
