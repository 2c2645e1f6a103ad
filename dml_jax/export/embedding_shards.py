"""Embeddings of many images in numbered files, so that a command that was killed can be continued.

`<output>.shards`, beside the output, holds `plan.json`, which says what is embedded by which model, and `000000.npy`,
`000001.npy`, …: the rows of `ROWS` consecutive images each, float32 [N, D], NaN for an unusable image. A file appears
once it is complete, in any order and from any process: processes need not know of each other, only see the same
directory. The one that finds all files writes the output from them, one at a time, and removes the directory.
"""

import fcntl
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.data.prepare.sources import stamp
from dml_jax.errors import DataError
from dml_jax.export import embedding_files
from dml_jax.files import atomic_write, read_json, reading, write_json

ROWS = 2048  # images per file, the most that a kill wastes
PLAN = "plan.json"
LOCK = ".lock"  # held while the plan is compared or written


def plan(files: Sequence[str], model: dict[str, Any]) -> dict[str, Any]:
    """What distinguishes one embedding of images from another.

    Args:
      files: paths of the images, whose sizes and times are looked up; a changed image has others.
      model: JSON values that differ between models.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file}\0{stamp(file)}\n".encode(errors="surrogateescape"))
    return {"images": len(files), "images_sha256": digest.hexdigest(), "rows": ROWS, **model}


def finished(output: Path, planned: dict[str, Any]) -> embedding_files.Exported | None:
    """What an output directory holds, if it is complete and undamaged, and of this plan."""
    with suppress(DataError):
        exported = embedding_files.read(output)
        if exported.manifest.get("plan") == planned:
            return exported
    return None


class Shards:
    """The numbered files of a plan.

    Args:
      output: directory that will hold the merged embeddings.
      planned: from `plan`.

    Raises:
      DataError: the files there are of another plan, or not from here.
    """

    def __init__(self, output: Path, planned: dict[str, Any]):
        output = output.resolve()
        self.directory = output.with_name(f"{output.name}.shards")
        self._plan = planned
        self.count = -(-planned["images"] // ROWS)
        if self.directory.exists():
            self._check()

    def _check(self) -> None:
        where = self.directory
        if not where.is_dir():
            raise DataError(f"{where}: is a file, but unfinished embeddings are kept there; give another --output")
        names = {entry.name for entry in where.iterdir() if not entry.name.startswith(".")}  # not the lock or a draft
        if PLAN not in names:
            if names:
                raise DataError(f"{where}: holds other files than unfinished embeddings; give another --output")
            return
        remedy = f"delete {where} or give another --output"
        begun = read_json(where / PLAN, dict[str, Any], remedy)
        changed = sorted(key for key in begun | self._plan if begun.get(key) != self._plan.get(key))
        if changed:
            what = "images that were different" if "images_sha256" in changed else "another model or version"
            raise DataError(f"{where}: was begun with {what} ({', '.join(changed)}); {remedy}")

    def images(self, number: int) -> range:
        """The indices of the images in a file."""
        return range(number * ROWS, min((number + 1) * ROWS, self._plan["images"]))

    def missing(self, process: int = 0, processes: int = 1) -> list[int]:
        """The numbers of the files that one of several processes has to write."""
        return [number for number in range(process, self.count, processes) if not self._file(number).exists()]

    def _file(self, number: int) -> Path:
        return self.directory / f"{number:06d}.npy"

    def write(self, number: int, rows: np.ndarray) -> None:
        """Writes a file, float32 [N, D], and before the first one the plan.

        Raises:
          DataError: see `Shards`.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOCK).open("ab") as lock:  # processes that start together must not all find no plan
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._check()
            if not (self.directory / PLAN).exists():
                write_json(self.directory / PLAN, self._plan)
        with atomic_write(self._file(number)) as draft:
            embedding_files.save_rows(draft, [rows], len(rows))

    def read(self, number: int) -> np.ndarray:
        """The rows of a file, memory-mapped.

        Raises:
          DataError: it is damaged.
        """
        path = self._file(number)
        with reading(path, "delete it, and the same command writes it again"), np.errstate(over="raise"):
            rows: np.ndarray = np.load(path, mmap_mode="r")
            if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != len(self.images(number)):
                raise DataError("does not hold the rows of its images; delete it")
        return rows

    def unusable(self) -> set[int]:
        """The indices of the images without an embedding."""
        bad = (np.flatnonzero(np.isnan(self.read(number)[:, 0])) for number in range(self.count))
        return {number * ROWS + int(row) for number, rows in enumerate(bad) for row in rows}

    def usable_rows(self) -> Iterator[np.ndarray]:
        """The rows of the other images, float32 [_, D] from each file."""
        for rows in map(self.read, range(self.count)):
            yield rows[~np.isnan(rows[:, 0])]

    def remove(self) -> None:
        """Removes the directory, the plan last, without which the other files would count as somebody else's."""
        for file in self.directory.glob("*.npy"):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def merging(self) -> Iterator[bool]:
        """Whether this process is to merge the files, which are removed afterwards.

        False if a file is missing, or if another process merges or has merged them.

        Raises:
          DataError: see `Shards`.
        """
        try:
            lock = (self.directory / PLAN).open("r+b")
        except FileNotFoundError:
            yield False
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = not self.missing()
            except BlockingIOError:
                free = False
            if free:
                self._check()  # somebody may have deleted the directory, and another command have filled it again
            yield free
            if free:
                self.remove()
