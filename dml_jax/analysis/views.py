"""Interactive parts of a page: tables, rows of pictures, maps.

The dataclasses are stored as JSON, see `findings.py`; the names in them are not trusted and are escaped here.
"""

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from dml_jax.analysis import drawing, html
from dml_jax.analysis.html import Cell, text

SIDE = 96  # pixels of a thumbnail's longer side
QUALITY = 70  # JPEG
SHEET_SIDE = 56  # pixels of a picture on the sheet of a map
SHEET_COLUMNS = 25
ROWS = 300  # shown in a table; the CSV file has all
# One per colour, so that colour alone distinguishes no class; coordinates within -5 to 5.
SHAPES = (
    '<circle r="4"/>', '<path d="M-3.6-3.6h7.2v7.2h-7.2z"/>', '<path d="M0-4.8L4.6 3.6H-4.6z"/>',
    '<path d="M0-5L5 0L0 5L-5 0z"/>', '<path d="M0 4.8L4.6-3.6H-4.6z"/>',
    '<path d="M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z"/>',
    '<path d="M-4.5-2.7L-2.7-4.5L0-1.8L2.7-4.5L4.5-2.7L1.8 0L4.5 2.7L2.7 4.5L0 1.8L-2.7 4.5L-4.5 2.7L-1.8 0z"/>',
)  # fmt: skip
REST = '<circle r="2.6"/>'
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


@dataclass(frozen=True)
class Map:
    """Points in the plane whose pictures appear under the pointer."""

    points: list[tuple[float, float]]  # (x, y) in 0..1, y upwards
    kinds: list[int]  # index into `names` of each point; -1 for others
    titles: list[str]  # tooltips
    names: list[str]  # names of the coloured classes
    axes: tuple[str, str]  # what x and y are
    sheet: str  # a JPEG file in base64 with the pictures, SHEET_COLUMNS in a row

    def __post_init__(self) -> None:
        """Raises ValueError if the lists do not match, as in a file edited by hand."""
        if not len(self.points) == len(self.kinds) == len(self.titles):
            raise ValueError("points, kinds and titles have different lengths")
        if len(self.names) > drawing.KINDS or not all(-1 <= kind < len(self.names) for kind in self.kinds):
            raise ValueError("kinds and names do not match")


View = Pictures | Listing | Map


def jpeg(image: np.ndarray) -> str:
    """An image uint8 [H, W, 3] as a small JPEG file in base64."""
    small = Image.fromarray(image)
    small.thumbnail((SIDE, SIDE))
    return _jpeg_base64(small)


def _jpeg_base64(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def sheet(images: Iterable[np.ndarray], count: int) -> str:
    """`count` images uint8 [H, W, 3] on white, SHEET_COLUMNS in a row, as a JPEG file in base64."""
    return _jpeg_base64(Image.fromarray(drawing.montage(images, count, SHEET_COLUMNS, SHEET_SIDE)))


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
        case Map():
            return f'<figure id="{text(name)}">{_map(view, name)}<figcaption>{caption}</figcaption></figure>'


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


def _map(view: Map, name: str) -> str:
    width, height = 640, 480
    shapes = "".join(f'<g id="{text(name)}-{i}">{shape}</g>' for i, shape in enumerate((*SHAPES, REST)))
    order = sorted(range(len(view.points)), key=lambda i: view.kinds[i] >= 0)  # coloured ones on top

    def point(i: int) -> str:
        (x, y), kind = view.points[i], view.kinds[i]
        colour, shape = drawing.look(kind) if kind >= 0 else (-1, len(SHAPES))
        look = f' class="k{colour}"' if kind >= 0 else ""
        place = f'x="{10 + x * (width - 20):.1f}" y="{10 + (1 - y) * (height - 20):.1f}"'
        return (
            f'<use href="#{text(name)}-{shape}"{look} data-i="{i}" {place}><title>{text(view.titles[i])}</title></use>'
        )

    entries = [
        f'<li><svg viewBox="-5 -5 10 10" class="k{i}" fill="var(--k)" aria-hidden="true">{SHAPES[j]}</svg>{text(n)}'
        for (i, j), n in zip(map(drawing.look, range(len(view.names))), view.names, strict=True)
    ]
    if any(kind < 0 for kind in view.kinds):
        entries.append(
            f'<li><svg viewBox="-5 -5 10 10" fill="var(--dim)" aria-hidden="true">{REST}</svg>all other classes'
        )
    label = f"Map of {len(view.points)} images; across: {view.axes[0]}; upwards: {view.axes[1]}"
    return (
        f'<div class="map"><svg class="plane" viewBox="0 0 {width} {height}" role="img" aria-label="{text(label)}">'
        f"<defs>{shapes}</defs>{''.join(map(point, order))}</svg>"
        f'<p class="note">Across: {text(view.axes[0])}. Upwards: {text(view.axes[1])}.</p>'
        f'<ul class="legend">{"".join(entries)}</ul>'
        f'<img class="sheet" data-columns="{SHEET_COLUMNS}" src="data:image/jpeg;base64,{text(view.sheet)}" alt="">'
        '<div class="tip" hidden><i></i><span></span></div></div>'
    )
