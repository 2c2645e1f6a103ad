"""Parts of a page: sortable tables and rows of pictures.

The dataclasses are stored as JSON, see `findings.py`; the names in them are not trusted and are escaped here.
"""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from dml_jax.analysis import html
from dml_jax.analysis.html import Cell, text

SIDE = 96  # pixels of a thumbnail's longer side
QUALITY = 70  # JPEG
ROWS = 300  # shown in a table; the CSV file has all
Mark = Literal["query", "right", "wrong", ""]
MARKS = {"right": "✓", "wrong": "✗", "query": "query"}


@dataclass(frozen=True)
class Picture:
    """A thumbnail."""

    jpeg: str  # a JPEG file in base64
    image: str
    name: str  # its class
    note: str = ""  # text below the class, e.g. a cosine.
    mark: Mark = ""  # the query, or whether it has the query's class; empty for neither


@dataclass(frozen=True)
class Pictures:
    """Rows of thumbnails, each with a label above it, which may be empty."""

    rows: list[tuple[str, list[Picture]]]


@dataclass(frozen=True)
class Listing:
    """A sortable table of the first of `total` rows; a cell is its text and, if it has one, its value, the sort key."""

    head: list[str]
    rows: list[list[tuple[str, float | None]]]
    total: int


View = Pictures | Listing


def jpeg(image: np.ndarray) -> str:
    """An image uint8 [H, W, 3] as a small JPEG file in base64."""
    small = Image.fromarray(image)
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def listing(head: Sequence[str], rows: Sequence[Sequence[str | float | tuple[str, float]]]) -> Listing:
    """A table of names, whole numbers, fractions, which are shown in %, and other numbers with their text."""

    def cell(value: str | float | tuple[str, float]) -> tuple[str, float | None]:
        match value:
            case str():
                return value, None
            case float():
                return f"{value:.1%}", value
            case int():
                return f"{value:,}", float(value)
            case _:
                return value

    return Listing(list(head), [[cell(value) for value in row] for row in rows[:ROWS]], len(rows))


def as_html(view: View, name: str, caption: str) -> str:
    """A view as HTML, with a caption in HTML."""
    match view:
        case Pictures():
            strips = "".join(map(_strip, view.rows))
            return f'<figure id="{text(name)}"><figcaption>{caption}</figcaption>{strips}</figure>'
        case Listing():
            cells = [[Cell(entry, math.nan if v is None else v) for entry, v in row] for row in view.rows]
            more = f'<p class="note">The first {len(view.rows):,} of {view.total:,} rows.</p>'
            return html.table(view.head, cells, f"table {name}") + (more if view.total > len(view.rows) else "")


def _strip(row: tuple[str, list[Picture]]) -> str:
    label, pictures = row
    above = f'<p class="strip-label">{text(label)}</p>' if label else ""
    return f'{above}<div class="strip">{"".join(map(_tile, pictures))}</div>'


def _tile(picture: Picture) -> str:
    mark = f'<b class="mark">{MARKS[picture.mark]}</b> ' if picture.mark else ""
    return (
        f'<div class="tile {picture.mark}" title="{text(picture.name)}: {text(picture.image)}">'
        f'<img src="data:image/jpeg;base64,{text(picture.jpeg)}" alt="{text(picture.image)}">'
        f"<span>{mark}{text(picture.note)}</span><span>{text(picture.name)}</span></div>"
    )
