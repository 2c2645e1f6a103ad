"""Self-contained HTML pages: style, script and pictures are embedded, and nothing else is loaded.

Names of images and classes are not trusted: all text is escaped here.
"""

import base64
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image

from dml_jax.drawing import SIDE, Picture, Strips
from dml_jax.errors import printable
from dml_jax.files import atomic_write

NARROW = 4  # most columns of a table that phones show as a table, not as a block per row
QUALITY = 70  # JPEG
LONG = 40  # characters of a cell from which its column is aligned like words and may wrap
ROWS = 300  # shown in a table; the CSV file has all
MARKS = {"right": "✓", "wrong": "✗", "query": "query", "": ""}


@dataclass(frozen=True)
class Section:
    """A part of a page; `body` is HTML."""

    title: str
    body: str
    note: str = ""


def text(value: str) -> str:
    """Escapes text for HTML, also within quoted attributes."""
    return html.escape(printable(value))


def document(title: str, body: str, images: str = "data:") -> str:
    """A whole page with an HTML body, and the style `dml_jax/pages/page.css`.

    Its content security policy stops a browser from running scripts, and from loading anything but
    images from the sources `images` of the policy.
    """
    policy = f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'"
    style = (resources.files("dml_jax") / "pages" / "page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,"><title>{text(title)}</title><style>{style}</style></head>
<body><main>
{body}
</main></body></html>
"""


def write_report(
    file: Path,
    title: str,
    lead: str,
    sections: Sequence[Section],
) -> None:
    """Writes a page with a table of contents, without empty sections."""
    titles = {s.title: re.sub(r"\W+", "-", s.title.lower()) for s in sections if s.body}
    anchors = {title: f"section-{words.strip('-')}" for title, words in titles.items()}
    links = "".join(f'<a href="#{anchor}">{text(title)}</a>' for title, anchor in anchors.items())
    body = f'<h1>{text(title)}</h1><p class="lead">{text(lead)}</p>'
    body += f'<nav aria-label="Contents">{links}</nav>'
    for section in (section for section in sections if section.body):
        note = f" <small>{text(section.note)}</small>" if section.note else ""
        body += f'<h2 id="{anchors[section.title]}">{text(section.title)}{note}</h2>{section.body}'
    with atomic_write(file) as draft:
        draft.write_text(document(title, body), encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str, *, ours: int = -1) -> str:
    """A table in a scrollable frame, with `label` for screen readers; row `ours` is emphasised."""
    cells = [list(row) for row in rows]
    wide = len(head) > NARROW
    columns = []  # attributes of the cells of each column
    heads = ""
    for i, name in enumerate(head):
        texts = [row[i] for row in cells]
        has_words = all(any(map(str.isalpha, cell)) for cell in texts)
        kind = " class=words" if i > 0 and (has_words or max(map(len, texts)) > LONG) else ""
        heads += f'<th scope="col"{kind}>{text(name)}</th>'
        columns.append(kind + (f' data-label="{text(name)}"' if i and wide else ""))
    lines = ""
    for i, row in enumerate(cells):
        shown = (f"<td{of}>{text(cell)}</td>" for of, cell in zip(columns, row, strict=True))
        lines += f"<tr{' class=ours' if i == ours else ''}>{''.join(shown)}</tr>"
    kind, tall = " class=wide" if wide else "", " tall" if len(cells) > 20 else ""
    body = f"<table{kind}><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    return _scrollable(body, label, f"scroll{tall}")


def _scrollable(body: str, label: str, kind: str = "scroll") -> str:
    return f'<div class="{kind}" tabindex="0" role="group" aria-label="{text(label)}">{body}</div>'


def listing(head: Sequence[str], rows: Sequence[Sequence[str | float]], label: str) -> str:
    """A table of the first rows: names, whole numbers, and fractions, which are shown in %."""

    def entry(value: str | float) -> str:
        if isinstance(value, str):
            return value
        return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"

    shown = table(head, [list(map(entry, row)) for row in rows[:ROWS]], f"table {label}")
    if len(rows) > ROWS:
        shown += f'<p class="note">The first {ROWS:,} of {len(rows):,} rows.</p>'
    return shown


def chart(picture: bytes, name: str, caption: str) -> str:
    """A PNG file as a figure with the identifier `name`; `caption` is HTML."""
    width = int.from_bytes(picture[16:20])  # in the header of PNG; phones scroll wide figures
    image = (
        f'<img src="{embedded(picture, "png")}" style="--width: {width}" '
        f'alt="Figure: {text(name.replace("_", " "))}">'
    )
    frame = _scrollable(image, f"figure {name}") + f"<figcaption>{caption}</figcaption>"
    return f'<figure class="chart" id="{text(name)}">{frame}</figure>'


def jpeg(pixels: np.ndarray, side: int, quality: int = QUALITY) -> bytes:
    """A JPEG file of an image uint8 [H, W, 3] of at most `side` pixels."""
    picture, output = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((side, side))
    picture.save(output, "JPEG", quality=quality, optimize=True)
    return output.getvalue()


def embedded(picture: bytes, kind: str = "jpeg") -> str:
    """The address of a picture that is part of the page."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def tile(source: str, title: str, lines: Sequence[str], *, mark: str = "", link: str = "") -> str:
    """A picture above lines of HTML; with a `link`, a click on it goes there."""
    element, target = ("a", f' href="{text(link)}"') if link else ("div", "")
    spans = "".join(f"<span>{line}</span>" for line in lines)
    return (
        f'<{element} class="tile {mark}"{target} title="{text(title)}"><img src="{source}" '
        f'alt="{text(title)}" loading="lazy">{spans}</{element}>'
    )


def pictures(rows: Strips, name: str, caption: str) -> str:
    """Rows of thumbnails as a figure with the identifier `name`; `caption` is HTML."""
    strips = ""
    for label, shown in rows:
        strips += f'<p class="strip-label">{text(label)}</p>' if label else ""
        strips += f'<div class="strip">{"".join(map(_of_picture, shown))}</div>'
    return f'<figure id="{text(name)}"><figcaption>{caption}</figcaption>{strips}</figure>'


def worth(sentences: Iterable[str]) -> str:
    """A list of sentences at the top of a page; empty without any."""
    lines = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f'<ul class="worth">{lines}</ul>' if lines else ""


def _of_picture(picture: Picture) -> str:
    name = re.sub("([-_/.]+)", r"\1<wbr>", text(picture.name))  # where lines may break
    note = f'<b class="mark">{MARKS[picture.mark]}</b> {text(picture.note)}'
    source, title = embedded(jpeg(picture.pixels, SIDE)), f"{picture.name}: {picture.image}"
    return tile(source, title, [note, name], mark=picture.mark)
