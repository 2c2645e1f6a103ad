"""Self-contained HTML pages: style, script and pictures are embedded, and nothing else is loaded.

The views (tables, rows of pictures) are stored as JSON; the names in them are not trusted and are escaped here.
"""

import base64
import hashlib
import html
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from dml_jax.errors import printable

NARROW = 4  # columns of a table; a wider one has one block per row on a telephone
SIDE = 96  # pixels of a thumbnail's longer side
QUALITY = 70  # JPEG
ROWS = 300  # shown in a table; the CSV file has all
Mark = Literal["query", "right", "wrong", ""]
MARKS = {"right": "✓", "wrong": "✗", "query": "query"}


class Cell(NamedTuple):
    """One entry of a table; `value` is its sort key, `rank` 1 for the best of its column and 2 for the second best."""

    text: str
    value: float = math.nan
    rank: int = 0


def text(value: str) -> str:
    """Escapes text for HTML, also within quoted attributes."""
    return html.escape(printable(value))


def resource(name: str) -> str:
    """Reads a file of `dml_jax/pages`."""
    return (resources.files("dml_jax") / "pages" / name).read_text(encoding="utf-8")


def document(
    title: str, body: str, *, styles: Sequence[str] = (), scripts: Sequence[str] = ("page.js",), sources: str = ""
) -> str:
    """A whole page.

    Its content security policy stops a browser from loading anything, and from running any script but these,
    whatever the displayed names contain.

    Args:
      body: HTML.
      styles, scripts: files of `dml_jax/pages`, the former in addition to the common style.
      sources: further rules of the policy, for a page that a server delivers.
    """
    code = "".join(map(resource, scripts))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data: {sources}; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    style = "".join(map(resource, ("page.css", *styles)))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,"><title>{text(title)}</title><style>{style}</style></head>
<body><main>
{body}
</main><script>{code}</script></body></html>
"""


def heading(title: str, note: str = "") -> str:
    """A section heading, to which `contents` links."""
    small = f" <small>{text(note)}</small>" if note else ""
    return f'<h2 id="{anchor(title)}">{text(title)}{small}</h2>'


def anchor(title: str) -> str:
    """The identifier of a section."""
    return "section-" + re.sub(r"\W+", "-", title.lower()).strip("-")


def contents(titles: Iterable[str]) -> str:
    """Links to sections."""
    links = "".join(f'<a href="#{anchor(title)}">{text(title)}</a>' for title in titles)
    return f'<nav aria-label="Contents">{links}</nav>'


def facts(entries: Iterable[tuple[str, str]]) -> str:
    """Names and values as a definition list; entries without a value are omitted."""
    return "<dl>" + "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in entries if v) + "</dl>"


def table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], label: str, *, ours: int = -1, sortable: bool = True
) -> str:
    """A table in a scrollable frame, whose `label` says to screen readers what it shows; row `ours` is emphasised.

    Clicking a heading sorts the rows, if they are sortable.
    """
    names = {0: "", 1: ' class="best"', 2: ' class="second"'}
    wide = len(head) > NARROW

    rows = list(rows)
    words = [i > 0 and all(_is_words(row[i]) for row in rows) for i in range(len(head))]

    def cell(entry: Cell, label: str, of_words: bool) -> str:
        value = "" if math.isnan(entry.value) else f' data-value="{entry.value!r}"'
        name = f' data-label="{text(label)}"' if wide and label else ""
        return f"<td{' class=words' if of_words else names[entry.rank]}{value}{name}>{text(entry.text)}</td>"

    button = "<button type=button>{}</button>" if sortable else "{}"
    heads = "".join(
        f'<th scope="col"{" class=words" if of_words else ""}>{button.format(text(name))}</th>'
        for name, of_words in zip(head, words, strict=True)
    )
    labels = ("", *head[1:])
    lines = [
        f"<tr{' class=ours' if i == ours else ''}>" + "".join(map(cell, row, labels, words)) + "</tr>"
        for i, row in enumerate(rows)
    ]
    tall = " tall" if len(lines) > 20 else ""
    body = (
        f"<table{' class=wide' if wide else ''}><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )
    return f'<div class="scroll{tall}" tabindex="0" role="group" aria-label="{text(label)}">{body}</div>'


def _is_words(cell: Cell) -> bool:
    return math.isnan(cell.value) and any(map(str.isalpha, cell.text))


def chart(picture: bytes, name: str, caption: str) -> str:
    """A PNG file as a figure with the identifier `name`; `caption` is HTML."""
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    image = f'<img src="{source}" alt="Figure: {text(name.replace("_", " "))}">'
    frame = f'<div class="scroll" tabindex="0" role="group" aria-label="figure {text(name)}">{image}</div>'
    return f'<figure class="chart" id="{text(name)}">{frame}<figcaption>{caption}</figcaption></figure>'


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
            return table(view.head, cells, f"table {name}") + (more if view.total > len(view.rows) else "")


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
