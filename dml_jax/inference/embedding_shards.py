"""Embeddings of many images in Parquet files, so that an interrupted command can be continued.

A directory holds `000000.parquet`, `000001.parquet`, …, one part for each unit of `inputs`, with
the columns `id` (text), `embedding` (D float32 numbers of unit length; null for an unusable image),
`error` (why an image is unusable, or null), `sha256` (of the image's file) and `stamp` (size and
times of a loose file, otherwise null). `_plan.json`, which readers of Parquet ignore, records the
inputs and the model. A part appears once it is complete, in any order and from any process.

If the images have changed, the parts are moved to `_earlier` first, which readers also ignore. New
parts take the embeddings of equal files from there; it is deleted once all of them are written.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSelector

from dml_jax import buckets, seal
from dml_jax.data import decode
from dml_jax.errors import DataError
from dml_jax.files import as_text, locked, reading
from dml_jax.inference import inputs
from dml_jax.inference.inputs import Item, Unit
from dml_jax.seal import Identity

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

PLAN, EARLIER = "_plan.json", "_earlier"
PART = re.compile(r"\d{6,}\.parquet")
COLUMNS = "id", "embedding", "error", "sha256", "stamp"
EMBED_AGAIN = "delete it, and its images are embedded again"
UNUSABLE = b"dml_jax.unusable"  # number of unusable images, of a part's metadata


class Summary(NamedTuple):
    """The numbers of images and of dimensions, and the first errors with their images."""

    images: int
    unusable: int
    dimensions: int
    errors: list[str]

    @property
    def usable(self) -> int:
        """The number of embeddings."""
        return self.images - self.unusable


class Shards:
    """The parts of a plan in a directory or below the URL of a bucket; see `opened`.

    Attributes:
      plan: what is recorded of inputs and model.
      tried_again: the number of unusable images in the parts that `missing` returned.
    """

    def __init__(self, directory: Path | str, planned: dict[str, Any]):
        """Writes the plan. In a local directory, embeddings by the same model of other images are
        set aside; DataError if the directory holds parts of another plan or other files."""
        self.directory, self.plan, self.tried_again = directory, planned, 0
        self.count: int = planned["parts"]
        names = {name for name in self._names() if not name.startswith(".")}
        if PLAN not in names:
            if names:
                raise DataError(f"{self.directory}: holds other files; give another directory")
            self._write_plan()
            return
        file, remedy = self._at(PLAN), f"delete {self.directory} or give another --output"
        with reading(file, remedy):
            content = (
                file.read_bytes() if isinstance(file, Path) else buckets.open_file(file).read()
            )
            begun = dict(json.loads(content))
            identity = Identity(**begun["identity"]) if "identity" in planned else None
        if identity:
            of_model = Identity(**planned["identity"])
            seal.check_identity(
                identity, of_model, f"{self.directory}", error=DataError, remedy=remedy
            )
        changed = {key for key in begun | planned if begun.get(key) != planned.get(key)}
        changed -= {"identity"}
        if "runtime" in changed and identity:  # one embedding function, whichever computes it
            both = {*begun["runtime"].split(" and "), planned["runtime"]}
            planned["runtime"] = " and ".join(sorted(both))
        if changed and not (identity and isinstance(directory, Path)):
            images = "inputs_sha256" in changed
            what = "other or changed images" if images else "another version or option"
            keys = ", ".join(sorted(changed))
            raise DataError(f"{self.directory}: was written for {what} ({keys}); {remedy}")
        if "inputs_sha256" in changed and isinstance(directory, Path):
            (directory / EARLIER).mkdir(exist_ok=True)
            for name in filter(PART.fullmatch, names):
                os.replace(directory / name, directory / EARLIER / f"{uuid4().hex}.parquet")
        if changed and ("inputs_sha256" in changed or self.missing()):
            self._write_plan()
        elif changed:
            planned["runtime"] = begun["runtime"]

    def _write_plan(self) -> None:
        with buckets.written(self._at(PLAN)) as draft:
            draft.write_text(json.dumps(self.plan, indent=2))

    def _names(self) -> list[str]:
        if isinstance(self.directory, Path):
            return os.listdir(self.directory)
        with buckets.accessing(self.directory):
            system, root = buckets.file_system(self.directory)
            found = system.get_file_info(FileSelector(root, allow_not_found=True))
            return [info.base_name for info in found]

    def _at(self, name: str) -> Path | str:
        directory = self.directory
        return directory / name if isinstance(directory, Path) else f"{directory}/{name}"

    def file(self, number: int) -> Path | str:
        """The file of a part, or its URL."""
        return self._at(f"{number:06d}.parquet")

    def missing(self) -> list[int]:
        """The numbers of the parts to write: missing ones, and those with unusable images, in a
        bucket only if the cause was a missing package that is installed by now.

        Raises DataError if one is damaged.
        """
        there, missing = set(self._names()), []
        self.tried_again = 0
        for number in range(self.count):
            if f"{number:06d}.parquet" not in there:
                missing.append(number)
                continue
            with self._opened(number) as part:
                if not (unusable := unusable_in(part)):
                    continue
                errors = filter(None, part.read(["error"])["error"].to_pylist())
                if isinstance(self.directory, Path) or any(map(decode.is_outdated, errors)):
                    missing.append(number)
                    self.tried_again += unusable
        return missing

    @property
    def changed(self) -> bool:
        """Whether embeddings of other images have been set aside."""
        return isinstance(self.directory, Path) and (self.directory / EARLIER).is_dir()

    def finish(self) -> str:
        """Deletes the embeddings that were set aside; says how many images are new, changed,
        dropped, tried again and kept."""
        assert isinstance(self.directory, Path)
        before, now = dict[str, Any](), dict[str, Any]()
        numbered = [self.directory / f"{number:06d}.parquet" for number in range(self.count)]
        earlier = self.directory / EARLIER
        for state, files in ((before, earlier.glob("*.parquet")), (now, numbered)):
            for file in files:
                for name, _, sha256, error in contents(file):
                    state[name] = sha256, error
        both = before.keys() & now.keys()
        failed = {name for name in both if before[name][1] is not None}
        changed = {name for name in both - failed if before[name][0] != now[name][0]}
        counts = {
            "new": len(now.keys() - before.keys()),
            "changed": len(changed),
            "dropped": len(before.keys() - now.keys()),
            "tried again": len(failed),
            "kept": len(both - failed - changed),
        }
        done = self.directory / ".earlier.tmp"
        os.replace(earlier, done)
        shutil.rmtree(done)
        return "images: " + ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)

    @contextmanager
    def _opened(self, number: int) -> Iterator[parquet.ParquetFile]:
        remedy = "delete it, and the same command writes it again"
        with opened_file(self.file(number), remedy) as part:
            embeddings = UNUSABLE in (part.metadata.metadata or {})
            if embeddings and part.schema_arrow != _schema(dimensions_of(part)):
                raise ValueError("other columns than " + ", ".join(COLUMNS))
            yield part

    def summary(self, shown: int) -> Summary:
        """Counts the images and reads the first errors, at most `shown`."""
        images = unusable = dimensions = 0
        errors: list[str] = []
        for number in range(self.count):
            with self._opened(number) as part:
                dimensions = dimensions_of(part)
                images += part.metadata.num_rows
                bad = int(part.metadata.metadata[UNUSABLE])  # KeyError without: another file
                unusable += bad
                if bad and len(errors) < shown:
                    rows = part.read(["id", "error"]).to_pylist()
                    bad_rows = [row for row in rows if row["error"] is not None]
                    errors += [f"{row['id']}: {row['error']}" for row in bad_rows]
        return Summary(images, unusable, dimensions, errors[:shown])

    def _tables(self, *columns: str) -> Iterator[pa.Table]:
        for number in range(self.count):
            with self._opened(number) as part:
                yield part.read(columns)

    def usable_names(self) -> list[str]:
        """The names of the usable images."""
        names = list[str]()
        for part in self._tables("id", "error"):
            names += part.filter(part["error"].is_null())["id"].to_pylist()
        return names

    def usable_rows(self) -> Iterator[np.ndarray]:
        """The embeddings of the usable images of each part, float32 [_, D]."""
        for part in self._tables("embedding"):
            for chunk in part["embedding"].chunks:
                yield rows_of(chunk)


def rows_of(embeddings: pa.Array) -> np.ndarray:
    """A column of embeddings without null rows, float32 [N, D]."""
    return embeddings.flatten().to_numpy().reshape(-1, embeddings.type.list_size)


def unusable_in(part: parquet.ParquetFile) -> int:
    """The number of unusable images in a file of embeddings; 0 for one of neighbours."""
    return int((part.metadata.metadata or {}).get(UNUSABLE, 0))


def dimensions_of(part: parquet.ParquetFile) -> int:
    """The length of the embeddings in a file."""
    return part.schema_arrow.field("embedding").type.list_size


@contextmanager
def opened_file(file: Path | str, remedy: str) -> Iterator[parquet.ParquetFile]:
    """A Parquet file, at a path or the URL of a bucket."""
    options = {"memory_map": True, "page_checksum_verification": True}
    opened_source = file if isinstance(file, Path) else buckets.open_file(file)
    with reading(file, remedy), parquet.ParquetFile(opened_source, **options) as opened:
        yield opened


@contextmanager
def opened(directory: Path | str, planned: dict[str, Any]) -> Iterator[Shards]:
    """The parts of a plan; no other command writes to a local directory meanwhile.

    In a bucket, several commands may write: parts appear completely, and are the same whoever wrote
    them. Raises UserError if the directory holds parts of another plan or other files, or another
    command writes there.
    """
    with ExitStack() as stack:
        if isinstance(directory, Path):
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(directory, wait=False))
            for draft in directory.glob(".*.tmp"):  # left by a command that was killed
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)
        yield Shards(directory, planned)


class Source(NamedTuple):
    """What the manifest and plan of embeddings say about their model."""

    identity: Identity
    finished: bool
    runtime: str


def source(model: "EmbeddingModel") -> Source:
    """What is said about a model."""
    return Source(model.identity, model.finished, model.runtime)


def plan(units: Sequence[Unit], model: Source) -> dict[str, Any]:
    """Identity of a set of parts, e.g. the sizes and times of the images' files."""
    return {
        "parts": len(units),
        "inputs_sha256": inputs.digest(units),
        "identity": asdict(model.identity),
        "runtime": model.runtime,
    }


def contents(part: Path) -> list[tuple[str, str | None, str, str | None]]:
    """Name, stamp, digest and error of each image of a part."""
    with opened_file(part, EMBED_AGAIN) as opened:
        columns = opened.read(["id", "stamp", "sha256", "error"]).to_pydict()
    return list(zip(*columns.values(), strict=True))


def _schema(dimensions: int) -> pa.Schema:
    text = pa.string()
    kinds = text, pa.list_(pa.float32(), dimensions), text, text, text
    return pa.schema(list(zip(COLUMNS, kinds, strict=True)))


def write_part(
    path: Path, items: Sequence[Item], rows: np.ndarray, reasons: Sequence[str | None]
) -> None:
    """Writes images, float32 [_, D] and errors as a part."""
    bad = np.array([reason is not None for reason in reasons], bool)
    rows = np.ascontiguousarray(np.where(bad[:, None], np.float32(0), rows))
    flat, mask = pa.array(rows.reshape(-1)), pa.array(bad)
    values = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1], mask=mask)
    names = [as_text(item.name) for item in items]
    told = [[item.sha256 for item in items], [item.stamp for item in items]]
    schema = _schema(rows.shape[1]).with_metadata({UNUSABLE: str(bad.sum())})
    table = pa.table([names, values, reasons, *told], schema=schema)
    options = {"use_dictionary": ["id", "error"], "write_page_checksum": True}
    parquet.write_table(table, path, **options)
