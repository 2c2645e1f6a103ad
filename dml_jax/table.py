"""One form of embeddings: a sealed directory with a row for each image.

It has `embeddings.npy` (float32 [N, D], rows of unit length), `ids.json` (N names), perhaps
`labels.npy` (int64 [N]) and `metadata.json` (columns of N values, such as "class_name", "session"
and the "sha256" of the image's file), and `manifest.json`. An image that cannot be used has no row,
but a reason in the manifest.

A table that takes long grows by chunks: small tables in the directory NAME.chunks, each written
once, by any process. Once no image is missing, they become one table, NAME, and are deleted. Images
are known by the content of their files, wherever these are: what has been embedded once is not
embedded again.
"""

import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_jax import seal
from dml_jax.errors import DataError
from dml_jax.files import OBSTRUCTED, as_text, locked, obstructed, read_json, sha256
from dml_jax.seal import Identity, Seal

KIND, REMEDY = "embeddings", "export it again"
WRITTEN = {"embeddings.npy", "labels.npy", "ids.json", "metadata.json", seal.MANIFEST}
BLOCK = 2**13  # rows in memory at once while chunks are joined


class Table(NamedTuple):
    """Embeddings of images, memory-mapped.

    Attributes:
      embeddings: float32 [N, D], rows of unit length.
      labels: int64 [N], or None for unlabelled images.
      ids: names of the N images.
      seal: digests and the identity of the embedding function; shapes and dtypes in `about`.
      metadata: further columns: name -> N values.
    """

    embeddings: np.ndarray
    labels: np.ndarray | None
    ids: list[str]
    seal: Seal
    metadata: Mapping[str, Sequence[Any]] = {}

    @property
    def unusable(self) -> dict[str, str]:
        """The images without a row, and the reasons."""
        return dict(self.seal.about.get("unusable", {}))


def check_replaceable(directory: Path, names: Collection[str] = WRITTEN) -> None:
    """Raises DataError unless `directory` is new or holds only files of a table, so that it may be
    replaced."""
    remedy = "give another directory"
    if obstructed(directory):
        raise DataError(f"{directory}: {OBSTRUCTED}; {remedy}")
    there = {entry.name for entry in directory.iterdir()} if directory.exists() else set()
    drafts = {name for name in there if name.startswith(".") and name.endswith(".tmp")}
    if foreign := sorted(there - drafts - {*names}):
        what = f"contains {foreign[0]}, which is not an exported file"
        raise DataError(f"{directory}: {what}; {remedy}")


def read(directory: Path, *, expect: Identity | None = None, remedy: str = REMEDY) -> Table:
    """Reads a table; DataError if a digest differs, or another embedding function than `expect`
    made it."""
    if not seal.sealed(directory):
        raise DataError(f"{directory}: contains no embeddings (no {seal.MANIFEST}); {remedy}")
    stated = seal.read(directory, KIND, expect=expect, remedy=remedy)
    text = list[str], dict[str, list[Any]]
    ids, columns = (
        read_json(directory / name, kind, remedy) if name in stated.files else {}
        for name, kind in zip(("ids.json", "metadata.json"), text, strict=True)
    )
    embeddings, labels = (
        np.load(directory / name, mmap_mode="r") if name in stated.files else None
        for name in ("embeddings.npy", "labels.npy")
    )
    assert embeddings is not None
    return Table(embeddings, labels, list(ids), stated, columns)


def write(
    directory: Path,
    embeddings: np.ndarray | Iterable[np.ndarray],
    labels: np.ndarray | None,
    ids: Sequence[str],
    *,
    identity: Identity | None = None,
    metadata: Mapping[str, Sequence[Any]] = {},
    **further: Any,
) -> Table:
    """Writes a table, completely or not at all; only another one is replaced.

    Args:
      embeddings: float [N, D], rows of unit length; or consecutive blocks of them, which need not
        fit in memory together.
      labels, ids, metadata: see `Table`.
      identity: of the embedding function; None for an ensemble.
      further: entries of the manifest, unless they are None: "finished", whether the run (or all
        runs of an ensemble) had finished; "data_hash" of the run, see `split.digest`; "members",
        the manifests of the runs of an ensemble; "unusable", see `Table`.
    """
    check_replaceable(directory)
    directory = directory.resolve()  # "." would be the replaced one
    about = {"normalised": True, "distance": "cosine"}
    about |= {key: value for key, value in further.items() if value is not None}
    with seal.write(directory, KIND, identity=identity, about=about) as draft:
        parts = [embeddings] if isinstance(embeddings, np.ndarray) else embeddings
        _save_rows(draft / "embeddings.npy", parts, len(ids))
        if labels is not None:
            np.save(draft / "labels.npy", labels.astype(np.int64))
        (draft / "ids.json").write_text(json.dumps(list(ids)), encoding="utf-8")
        if metadata:
            (draft / "metadata.json").write_text(json.dumps(dict(metadata)), encoding="utf-8")
        arrays = [np.load(path, mmap_mode="r") for path in sorted(draft.glob("*.npy"))]
        names = ("embeddings.npy", "labels.npy")[: len(arrays)]
        about["shapes"] = {name: list(a.shape) for name, a in zip(names, arrays, strict=True)}
        about["dtypes"] = {name: str(a.dtype) for name, a in zip(names, arrays, strict=True)}
    rows, classes = (*arrays, None)[:2]
    return Table(rows, classes, list(ids), seal.read_manifest(directory), metadata)


def _save_rows(path: Path, parts: Iterable[np.ndarray], count: int) -> None:
    """Writes arrays [_, D] with `count` rows in all as one array float32 [count, D]."""
    start = 0
    with path.open("wb") as file:
        for part in parts:
            if file.tell() == 0:  # `start` is still 0 after an empty part
                header = {"descr": "<f4", "fortran_order": False, "shape": (count, part.shape[1])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(part, "<f4").data)
            start += len(part)
    assert start == count


class Growing:
    """A table of images that are being embedded; see `growing`.

    Attributes:
      directory: of the table once it is complete.
      chunks: the directory of the chunks until then.
      before: the table that is there already, or None.
      unusable: the names of unusable images in appended chunks, with the reasons.
    """

    def __init__(self, directory: Path, identity: Identity):
        self.directory, self._identity = directory, identity
        self.chunks = directory.with_name(f"{directory.name}.chunks")
        self._done = directory.with_name(f".{directory.name}.chunks.tmp")
        shutil.rmtree(self._done, ignore_errors=True)
        check_replaceable(directory)
        there = [path for path in self.chunks.glob("*") if not path.name.startswith(".")]
        for path in there:
            if not re.fullmatch(r"\d{6,}", path.name):
                raise DataError(f"{path}: is not a chunk of embeddings; give another directory")
        self._parts: list[Table] = []
        self._places: dict[str, tuple[int, int]] = {}  # SHA-256 of a file -> part and row
        self._sha256: dict[str, str] = {}  # of each name
        self.unusable: dict[str, str] = {}
        self.before = self.append(directory) if seal.sealed(directory) else None
        for path in sorted(there):
            self.append(path)
        self._sha256, self.unusable = {}, {}  # the files may have changed since then
        self._next = max((int(path.name) for path in there), default=-1) + 1

    def append(self, chunk: Path) -> Table:
        """Takes the rows of a chunk that is on disk; DataError if it is damaged, or another model
        made it."""
        remedy = f"delete {chunk}, and its images are embedded again, or give another --output"
        part = read(chunk, expect=self._identity, remedy=remedy)
        contents = part.metadata.get("sha256", ())
        if len(contents) != len(part.ids):
            raise DataError(f"{chunk}: does not say which files were embedded; {remedy}")
        number = len(self._parts)
        self._parts.append(part)
        self._places |= {content: (number, row) for row, content in enumerate(contents)}
        self._sha256 |= zip(part.ids, contents, strict=True)
        self.unusable |= part.unusable
        return part

    def missing(self, files: Sequence[str]) -> list[str]:
        """The files whose content has no row."""
        if self._places:  # otherwise, reading the files would tell nothing
            with ThreadPoolExecutor() as pool:
                for start in range(0, len(files), BLOCK):
                    names = files[start : start + BLOCK]
                    digests = zip(names, pool.map(_content, names), strict=True)
                    self._sha256 |= {as_text(name): digest for name, digest in digests}
        return [name for name in dict.fromkeys(files) if self._place(name) is None]

    def _place(self, name: str) -> tuple[int, int] | None:
        return self._places.get(self._sha256.get(as_text(name), ""))

    def new_chunk(self) -> Path:
        """The directory of a chunk to write."""
        self._next += 1
        return self.chunks / f"{self._next - 1:06d}"

    def finish(self, files: Sequence[str], **further: Any) -> Table:
        """Joins the rows of files, in their order, without those that have none; `further` as for
        `write`."""
        placed = [(as_text(name), place) for name in files if (place := self._place(name))]
        ids, places = [name for name, _ in placed], np.array([place for _, place in placed])
        columns = {"sha256": [self._sha256[name] for name in ids]}
        content = ids, columns, self.unusable
        result = self.before
        if not result or (result.ids, result.metadata, result.unusable) != content:
            blocks = (self._rows(places[i : i + BLOCK]) for i in range(0, len(places), BLOCK))
            how: Any = {"identity": self._identity, "unusable": self.unusable} | further
            result = write(self.directory, blocks, None, ids, metadata=columns, **how)
        if self.chunks.exists():
            self.chunks.rename(self._done)  # so that a kill leaves no half of a chunk
            shutil.rmtree(self._done)
        return result

    def _rows(self, places: np.ndarray) -> np.ndarray:
        """The rows at places, int [B, 2], float32 [B, D]."""
        rows = np.empty((len(places), self._parts[places[0, 0]].embeddings.shape[1]), np.float32)
        for number in np.unique(places[:, 0]):
            inside = places[:, 0] == number
            rows[inside] = self._parts[number].embeddings[places[inside, 1]]
        return rows


def _content(name: str) -> str:
    """The SHA-256 of a file; "" if it cannot be read, which embedding it will say."""
    try:
        return sha256(Path(name)) if Path(name).is_file() else ""
    except (OSError, ValueError):
        return ""


@contextmanager
def growing(directory: Path, identity: Identity) -> Iterator[Growing]:
    """A table in a directory to which no other command writes meanwhile.

    Raises UserError if another command writes there, if there are other files, or if another model
    made the rows.
    """
    directory = directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_name(f"{directory.name}.chunks"), wait=False):
        yield Growing(directory, identity)
