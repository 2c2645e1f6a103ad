"""Embeddings of many images in Parquet files, so that an interrupted command can be continued.

A directory holds `000000.parquet`, `000001.parquet`, …, one part for each unit of `inputs`, with
the columns `id` (text), `embedding` (D float32 numbers of unit length; null for an unusable image)
and `error` (why an image is unusable, or null). `_plan.json`, which readers of Parquet ignore,
records the inputs and the model. A part appears once it is complete, in any order and from any
process.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSelector

from dml_jax import buckets
from dml_jax import identity as identities
from dml_jax.data import decode
from dml_jax.errors import DataError
from dml_jax.files import locked, reading
from dml_jax.identity import Identity
from dml_jax.inference import inputs
from dml_jax.inference.inputs import Item, Unit

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

PLAN = "_plan.json"
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
    """The parts of a plan in a directory or below the URL of a bucket; see `opened`."""

    def __init__(self, directory: Path | str, planned: dict[str, Any]):
        """Writes the plan; DataError if the directory holds parts of another plan or other
        files."""
        self.directory = directory
        self.count: int = planned["parts"]
        names = {name for name in self._names() if not name.startswith(".")}
        file = self._at(PLAN)
        if PLAN not in names:
            if names:
                raise DataError(f"{self.directory}: holds other files; give another directory")
            with buckets.written(file) as draft:
                draft.write_text(json.dumps(planned, indent=2))
            return
        remedy = f"delete {self.directory} or give another --output"
        with reading(file, remedy):
            content = (
                file.read_bytes() if isinstance(file, Path) else buckets.open_file(file).read()
            )
            begun = dict(json.loads(content))
            identity = identities.of_json(begun.pop("identity"))
        of_model = identities.of_json(planned["identity"])
        identity.check(of_model, f"{self.directory}", remedy, DataError)
        rest = {key: value for key, value in planned.items() if key != "identity"}
        changed = sorted(key for key in begun | rest if begun.get(key) != rest.get(key))
        if changed:
            images = "inputs_sha256" in changed
            what = "other or changed images" if images else "another version or option"
            keys = ", ".join(changed)
            raise DataError(f"{self.directory}: was written for {what} ({keys}); {remedy}")

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
        """The numbers of the parts to write: missing ones, and those with errors because of missing
        packages that are installed by now.

        Raises DataError if one is damaged.
        """
        there = set(self._names())
        missing = []
        for number in range(self.count):
            if f"{number:06d}.parquet" not in there:
                missing.append(number)
                continue
            with self._opened(number) as part:
                if not unusable_in(part):
                    continue
                errors = filter(None, part.read(["error"])["error"].to_pylist())
                if any(map(decode.is_outdated, errors)):
                    missing.append(number)
        return missing

    @contextmanager
    def _opened(self, number: int) -> Iterator[parquet.ParquetFile]:
        remedy = "delete it, and the same command writes it again"
        with opened_file(self.file(number), remedy) as part:
            embeddings = UNUSABLE in (part.metadata.metadata or {})
            if embeddings and part.schema_arrow != _schema(dimensions_of(part)):
                raise ValueError("other columns than id, embedding and error")
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
    with reading(file, remedy), parquet.ParquetFile(inputs.source(file), **options) as opened:
        yield opened


@contextmanager
def opened(directory: Path | str, planned: dict[str, Any]) -> Iterator[Shards]:
    """The parts of a plan; no other command writes to a local directory meanwhile.

    In a bucket, several commands may write: parts appear completely, and are the same whoever wrote
    them. Raises DataError if the directory holds parts of another plan or other files, or another
    command writes there.
    """
    with ExitStack() as stack:
        if isinstance(directory, Path):
            directory.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(locked(directory, wait=False))
            except BlockingIOError:
                problem = f"{directory}: another command is writing there; wait for its end"
                raise DataError(problem) from None
            for draft in directory.glob(".*.tmp"):  # left by a command that was killed
                draft.unlink(missing_ok=True)
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
        "identity": model.identity.as_json(),
        "runtime": model.runtime,
    }


Embed = Callable[[Iterable[tuple[Path | str, Unit]]], Iterable[Path | str]]  # see `embed`


def embed(
    model: "EmbeddingModel",
    units: Iterable[tuple[Path | str, Unit]],
    on_read: Callable[[float], object] = lambda seconds: None,
) -> Iterator[Path | str]:
    """Embeds units and yields the file of each once it is written; see `embed_each`."""
    # Files, names of the images in a block, and whether it is the last block of the file.
    begun = deque[tuple[Path | str, list[str], bool]]()
    errors = deque[DataError]()

    def groups() -> Iterator[list[Item]]:
        for file, unit in units:
            for block, last in _with_end(inputs.blocks(unit)):
                begun.append((file, [item.name for item in block], last))
                yield block

    rows_of_blocks = model.embed_each(groups(), errors.append, on_read)
    for rows in rows_of_blocks:
        file, names, last = begun.popleft()
        with buckets.written(file) as draft, _writing(draft, rows.shape[1]) as write:
            while True:
                reasons = [
                    str(errors.popleft()).removeprefix(f"{name}: ") if nan else None
                    for name, nan in zip(names, np.isnan(rows[:, 0]), strict=True)
                ]
                write(names, rows, reasons)
                if last:
                    break
                rows = next(rows_of_blocks)
                _, names, last = begun.popleft()
        yield file


def _with_end(blocks: Iterator[list[Item]]) -> Iterator[tuple[list[Item], bool]]:
    block = next(blocks)
    for following in blocks:
        yield block, False
        block = following
    yield block, True


def _schema(dimensions: int) -> pa.Schema:
    rows = pa.list_(pa.float32(), dimensions)
    return pa.schema([("id", pa.string()), ("embedding", rows), ("error", pa.string())])


@contextmanager
def _writing(
    path: Path, dimensions: int
) -> Iterator[Callable[[list[str], np.ndarray, list[str | None]], None]]:
    """A function that appends names, float32 [_, D] and errors to a part."""
    schema, unusable = _schema(dimensions), 0

    def table(names: list[str], rows: np.ndarray, reasons: list[str | None]) -> pa.Table:
        nonlocal unusable
        bad = np.array([reason is not None for reason in reasons], bool)
        unusable += int(bad.sum())
        rows = np.ascontiguousarray(np.where(bad[:, None], np.float32(0), rows))
        flat = pa.array(rows.reshape(-1))
        values = pa.FixedSizeListArray.from_arrays(flat, dimensions, mask=pa.array(bad))
        ids = [name.encode("utf-8", "backslashreplace").decode() for name in names]
        return pa.table([ids, values, pa.array(reasons, pa.string())], schema=schema)

    options = {"use_dictionary": ["id", "error"], "write_page_checksum": True}
    with parquet.ParquetWriter(path, schema, **options) as writer:
        yield lambda names, rows, reasons: writer.write_table(table(names, rows, reasons))
        writer.add_key_value_metadata({UNUSABLE: str(unusable)})
