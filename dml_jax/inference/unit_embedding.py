"""Embedding units of images into the parts of `embedding_shards`, without embedding a file again
whose content has been embedded before."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dml_jax import buckets
from dml_jax.data.files import stamp
from dml_jax.data.read_ahead import ordered_map
from dml_jax.errors import DataError
from dml_jax.files import as_text
from dml_jax.inference.embedding_shards import (
    EARLIER,
    EMBED_AGAIN,
    contents,
    opened_file,
    rows_of,
    write_part,
)
from dml_jax.inference.inputs import Item, Unit

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

Embed = Callable[[Iterable[tuple[Path | str, Unit]]], Iterable[Path | str]]  # see `embed`


def embed(
    model: "EmbeddingModel",
    units: Iterable[tuple[Path | str, Unit]],
    on_read: Callable[[float], object] = lambda seconds: None,
) -> Iterator[Path | str]:
    """Embeds units and yields the file of each once it is written; see `embed_each`.

    The embeddings of unchanged files come from the file that is replaced, or from `EARLIER`.
    """
    begun, errors = deque[_Part](), deque[DataError]()

    def groups() -> Iterator[list[Item]]:
        earlier: _Known | None = None
        for file, unit in units:
            known = _Known([file] if isinstance(file, Path) and file.exists() else [])
            if not known and isinstance(file, Path):
                earlier = earlier or _Known((file.parent / EARLIER).glob("*.parquet"))
                known = earlier
            items = unit.items()
            places = known.find(items)
            begun.append(_Part(file, items, places))
            if fresh := [i for i, place in zip(items, places, strict=True) if not place]:
                yield fresh

    for part, rows in _complete(begun, model.embed_each(groups(), errors.append, on_read)):
        reasons = [
            str(errors.popleft()).removeprefix(f"{item.name}: ") if nan else None
            for item, nan in zip(part.items, np.isnan(rows[:, 0]), strict=True)
        ]
        with buckets.written(part.file) as draft:
            write_part(draft, part.items, rows, reasons)
        yield part.file


class _Place(NamedTuple):
    """An embedding of an unchanged file."""

    part: Path
    row: int
    sha256: str


class _Part(NamedTuple):
    """The images of a part, and the places of the embeddings that are known already."""

    file: Path | str
    items: list[Item]
    places: list[_Place | None]


def _complete(
    begun: deque[_Part], fresh: Iterator[np.ndarray]
) -> Iterator[tuple[_Part, np.ndarray]]:
    """The parts with all of their rows, given the rows of those images that are not known yet."""
    for rows in fresh:
        while all(begun[0].places):
            yield (part := begun.popleft()), _rows_at(part.places)
        part = begun.popleft()
        new = np.array([place is None for place in part.places])
        if not new.all():
            rows, embedded = np.empty((len(new), rows.shape[1]), np.float32), rows
            rows[new], rows[~new] = embedded, _rows_at(part.places)
        yield part, rows
    while begun:
        yield (part := begun.popleft()), _rows_at(part.places)


def _rows_at(places: Sequence[_Place | None]) -> np.ndarray:
    """The rows at the known places, float32 [_, D]."""
    known, found = [place for place in places if place], dict[_Place, np.ndarray]()
    for file in dict.fromkeys(place.part for place in known):
        here = [place for place in known if place.part == file]
        with opened_file(file, EMBED_AGAIN) as part:
            column = part.read(["embedding"])["embedding"].combine_chunks()
            found |= zip(here, rows_of(column.take([place.row for place in here])), strict=True)
    return np.stack([found[place] for place in known])


class _Known:
    """The places of earlier embeddings."""

    def __init__(self, parts: Iterable[Path]):
        self._places: dict[Any, _Place] = {}  # by content, and by name and stamp
        for part in parts:
            for row, (name, stamped, sha256, error) in enumerate(contents(part)):
                if error is None:
                    place = _Place(part, row, sha256)
                    self._places |= {sha256: place, (name, stamped): place}

    def __bool__(self) -> bool:
        return bool(self._places)

    def find(self, items: Sequence[Item]) -> list[_Place | None]:
        """The places of images whose files are unchanged, by their stamps or else by their
        contents; None for the others."""

        def find(item: Item) -> _Place | None:
            item.stamp = stamp(item.path)
            place = self._places.get((as_text(item.name), item.stamp))
            if not place:
                with suppress(DataError):  # raised again when the image is embedded
                    item.read()
                place = self._places.get(item.sha256)
            if place:
                item.sha256 = place.sha256
            return place

        return list(ordered_map(find, items)) if self else [None] * len(items)
