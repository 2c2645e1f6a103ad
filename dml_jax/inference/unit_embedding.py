"""Embedding units of images into the parts of `embedding_shards`, without embedding a file again
whose content has been embedded before."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dml_jax import buckets
from dml_jax.data.files import stamp
from dml_jax.data.read_ahead import ordered_map
from dml_jax.errors import DataError
from dml_jax.files import as_text
from dml_jax.inference import inputs
from dml_jax.inference.embedding_shards import (
    EARLIER,
    EMBED_AGAIN,
    contents,
    opened_file,
    rows_of,
    writing,
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
    begun, errors = deque[_Block](), deque[DataError]()

    def groups() -> Iterator[list[Item]]:
        earlier: _Known | None = None
        for file, unit in units:
            known = _Known([file] if isinstance(file, Path) and file.exists() else [])
            if not known and isinstance(file, Path):
                earlier = earlier or _Known((file.parent / EARLIER).glob("*.parquet"))
                known = earlier
            for items, following in pairwise(chain(inputs.blocks(unit), [[]])):
                places = known.find(items)
                begun.append(_Block(file, items, places, last=not following))
                if fresh := [i for i, place in zip(items, places, strict=True) if not place]:
                    yield fresh

    blocks = _complete(begun, model.embed_each(groups(), errors.append, on_read))
    for block, rows in blocks:
        with buckets.written(block.file) as draft, writing(draft, rows.shape[1]) as write:
            while True:
                reasons = [
                    str(errors.popleft()).removeprefix(f"{item.name}: ") if nan else None
                    for item, nan in zip(block.items, np.isnan(rows[:, 0]), strict=True)
                ]
                write(block.items, rows, reasons)
                if block.last:
                    break
                block, rows = next(blocks)
        yield block.file


class _Place(NamedTuple):
    """An embedding of an unchanged file."""

    part: Path
    row: int
    sha256: str


class _Block(NamedTuple):
    """Images of a part, and the places of the embeddings that are known already."""

    file: Path | str
    items: list[Item]
    places: list[_Place | None]
    last: bool  # block of its file


def _complete(
    begun: deque[_Block], fresh: Iterator[np.ndarray]
) -> Iterator[tuple[_Block, np.ndarray]]:
    """The blocks with all of their rows, given the rows of those images that are not known yet."""
    for rows in fresh:
        while all(begun[0].places):
            yield (block := begun.popleft()), _rows_at(block.places)
        block = begun.popleft()
        new = np.array([place is None for place in block.places])
        if not new.all():
            rows, embedded = np.empty((len(new), rows.shape[1]), np.float32), rows
            rows[new], rows[~new] = embedded, _rows_at(block.places)
        yield block, rows
    while begun:
        yield (block := begun.popleft()), _rows_at(block.places)


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
            place = None
            if isinstance(item.content, Path):
                item.stamp = stamp(item.content)
                place = self._places.get((as_text(item.name), item.stamp))
            if not place:
                with suppress(DataError):  # raised again when the image is embedded
                    item.read()
                place = self._places.get(item.sha256)
            if place:
                item.sha256, item.content = place.sha256, b""  # frees memory
            return place

        return list(ordered_map(find, items)) if self else [None] * len(items)
