"""Images to embed, in units with one file of embeddings each: loose files, Parquet files and
archives.

A unit is `ROWS` consecutive loose files, a row group of a Parquet file, or an archive (a shard of
WebDataset). Its images are read in blocks, so that no more than a few hundred contents of a Parquet
file or archive are in memory.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from dml_jax import buckets
from dml_jax.data.files import IMAGE_SUFFIXES, MAX_BYTES, File, is_ignored, is_image, stamp, walk
from dml_jax.data.formats import parquet
from dml_jax.data.prepare import archives
from dml_jax.data.prepare.sources import survey
from dml_jax.data.prepare.understand import shown
from dml_jax.errors import DataError, printable
from dml_jax.files import BUCKETS, expand_path, is_url, reading

ROWS = 2048  # loose files per unit, the most that a kill wastes
# Images of a Parquet file or archive that are in memory at a time: at most this number, and no more
# once they have this number of bytes.
BLOCK, BLOCK_BYTES = 256, 2**26
SHARDS = (".parquet", *archives.ENDINGS)


@dataclass
class Item:
    """An image: its name in the output, its path or the content of its file and, once it has been
    read, what identifies that content."""

    name: str
    content: Path | bytes
    stamp: str | None = None  # of a loose file, see `data.files.stamp`
    sha256: str | None = None  # hexadecimal, of the content

    def read(self) -> bytes:
        """The content; DataError as for `data.files.File`."""
        content = self.content
        if isinstance(content, Path):
            self.stamp = stamp(content)  # before reading: a later change is seen next time
            content = File(content).read()
        self.sha256 = hashlib.sha256(content).hexdigest()
        return content


class Unit(NamedTuple):
    """The images of one file of embeddings: loose files, a row group of a Parquet file, or an
    archive."""

    kind: Literal["files", "parquet", "archive"]
    names: tuple[str, ...]  # as the user named the files; more than one only for loose files
    root: str  # absolute directory of relative names: other machines may work in another one
    group: int = 0  # number of the row group


def is_shard(name: str) -> bool:
    """Whether a file of this name may hold many images."""
    return name.lower().endswith(SHARDS)


def image_files(paths: Iterable[str], warn: Callable[[str], object]) -> list[str]:
    """Image files among `paths`, and those below directories among them; `warn` gets a line about
    each kind of file that is left out.

    Raises DataError if a path does not exist, or a directory has no image file.
    """
    return images_and_shards(paths, None, warn)[0]


def images_and_shards(
    paths: Iterable[str], output: Path | str | None, warn: Callable[[str], object]
) -> tuple[list[str], list[str]]:
    """Like `image_files`, and Parquet files and archives, also those in directories without loose
    images.

    `output` is the directory or URL of the embeddings, whose files are left out; without it, only
    image files count.
    """
    files, shards, doubts = list[str](), list[str](), list[str]()
    for name in paths:
        if output is not None and name.startswith(BUCKETS):
            shards += bucket_shards(name, output)
        elif (path := expand_path("IMAGE", name)).is_dir():
            images, packed, left_out = _in_directory(path, output)
            files, shards = files + images, shards + packed
            doubts += [f"{name}: {line}" for line in left_out]
            if not images and not packed:
                suffixes = f"suffixes: {', '.join(IMAGE_SUFFIXES)}"
                raise DataError("; ".join([f"{name}: no image files ({suffixes})", *left_out]))
        elif path.is_file():
            (shards if output is not None and is_shard(name) else files).append(str(path))
        else:
            raise DataError(f"{name}: there is no such file or directory")
    for line in shown(doubts):
        warn(printable(line))
    return files, list(dict.fromkeys(shards))


def _in_directory(
    directory: Path, output: Path | str | None
) -> tuple[list[str], list[str], list[str]]:
    """Image files below a directory; if there are none, Parquet files and archives outside
    `output`; and what is left out."""
    found = survey(walk(directory))
    images = [str(file.path) for name, file in found.files.items() if is_image(name)]
    packed: dict[str, Path] = {}
    if output is not None and not images:
        packed = {
            name: file.path
            for name, file in found.files.items()
            if is_shard(name) and not file.path.resolve().is_relative_to(output)
        }
    skipped = Counter(found.skipped) - Counter(PurePath(name).suffix.lower() for name in packed)
    return images, list(map(str, packed.values())), found._replace(skipped=skipped).doubts()


def bucket_shards(url: str, output: Path | str) -> list[str]:
    """The Parquet files and archives at a URL or below it, except those in `output`."""
    names = buckets.list_files(url)
    if loose := [name for name in names if is_image(name or url)]:
        raise DataError(
            f"{url}: holds loose images, e.g. {loose[0]}; copy them to a directory, or give "
            "Parquet files"
        )
    found = [
        f"{url.rstrip('/')}/{quote(name)}" if name else url
        for name in names
        if is_shard(name or url)
    ]
    found = [name for name in found if not name.startswith(f"{output}/")]
    if not found:
        raise DataError(f"{url}: holds no Parquet files or archives")
    return found


def units(files: Sequence[str], shard_files: Iterable[str]) -> list[Unit]:
    """The units of loose files, Parquet files and archives."""
    root = os.getcwd()
    found = [Unit("files", tuple(files[i : i + ROWS]), root) for i in range(0, len(files), ROWS)]
    for name in shard_files:
        if not name.lower().endswith(".parquet"):
            found.append(Unit("archive", (name,), root))
            continue
        with reading(name), parquet.opened(source(_path("", name))) as (table, _):
            parquet.image_column(table.schema_arrow)
            rows = [
                table.metadata.row_group(group).num_rows
                for group in range(table.metadata.num_row_groups)
            ]
        found += [
            Unit("parquet", (name,), root, group) for group, count in enumerate(rows) if count
        ]
    return found


def digest(found: Sequence[Unit]) -> str:
    """SHA-256 of the names, sizes and times of the files of all units, to detect changed files."""
    sha256 = hashlib.sha256()
    for unit in found:
        sha256.update(f"{unit.kind}\0{unit.group}\n".encode())
        for name in unit.names:
            path = _path(unit.root, name)
            if isinstance(path, Path):
                state = stamp(path)
            else:
                (info,) = buckets.list_files(path).values()
                state = f"{info.size} {info.mtime_ns}"
            sha256.update(f"{name}\0{state}\n".encode(errors="surrogateescape"))
    return sha256.hexdigest()


def _path(root: str, name: str) -> Path | str:
    return name if is_url(name) else Path(root, name)


def source(path: Path | str) -> Any:
    """A path for readers; the opened file if it is in a bucket."""
    return buckets.open_file(str(path)) if is_url(path) else path


def blocks(unit: Unit) -> Iterator[list[Item]]:
    """The images of a unit in non-empty lists; raises DataError if its file is damaged or holds no
    images."""
    if unit.kind == "files":
        yield [Item(name, Path(unit.root, name)) for name in unit.names]
        return
    name = unit.names[0]
    path = _path(unit.root, name)
    items = _rows(path, name, unit.group) if unit.kind == "parquet" else _members(path, name)
    with reading(name):
        empty = True
        for block in _divided(items):
            yield block
            empty = False
        if empty:
            raise DataError("holds no images; leave it out")


def _divided(items: Iterator[Item]) -> Iterator[list[Item]]:
    block, size = list[Item](), 0
    for item in items:
        block.append(item)
        size += len(item.content)  # type: ignore[arg-type]  # no path
        if len(block) == BLOCK or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _rows(path: Path | str, name: str, group: int) -> Iterator[Item]:
    """The images of a row group, named by the column `id`, or else <name>/<row of the file>."""
    with parquet.opened(source(path)) as (table, size):
        image, unpacked = parquet.image_column(table.schema_arrow), 0
        columns = [image, "id"] if "id" in table.schema_arrow.names else [image]
        row = sum(table.metadata.row_group(i).num_rows for i in range(group))
        for batch in parquet.row_batches(table, group, columns):
            for values in batch.to_pylist():
                content = values[image]
                if isinstance(content, dict):
                    content = content["bytes"]
                unpacked += len(content or b"")
                archives.check_unpacked(unpacked, size)  # repeated values are stored once
                given = values.get("id")
                yield Item(f"{name}/{row}" if given is None else str(given), content or b"")
                row += 1


def _members(path: Path | str, name: str) -> Iterator[Item]:
    """The images in an archive, named <name>/<path in the archive>."""
    with path.open("rb") if isinstance(path, Path) else source(path) as archive:
        for member in archives.members(name, archive):
            if is_image(member.name) and not is_ignored(member.name):
                if member.size > MAX_BYTES:
                    raise DataError(
                        f"{member.name}: larger than {MAX_BYTES // 2**20} MiB; leave it out"
                    )
                yield Item(f"{name}/{member.name}", member.content.read())
