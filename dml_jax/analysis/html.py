"""Self-contained HTML pages: style, script and pictures are embedded, and nothing else is loaded.

Names of images and classes are not trusted: all text is escaped here.
"""

import base64
import hashlib
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from PIL import Image

from dml_jax.drawing import Picture, Strips
from dml_jax.errors import printable
from dml_jax.files import atomic_write

NARROW = 4  # columns of a table; a wider one has one block per row on a telephone
QUALITY = 70  # JPEG
ROWS = 300  # shown in a table; the CSV file has all
MARKS = {"right": "✓", "wrong": "✗", "query": "query"}


@dataclass(frozen=True)
class Section:
    """A part of a page; `body` is HTML."""

    title: str
    body: str
    note: str = ""


def text(value: str) -> str:
    """Escapes text for HTML, also within quoted attributes."""
    return html.escape(printable(value))


def resource(name: str) -> str:
    """Reads a file of `dml_jax/pages`."""
    return (resources.files("dml_jax") / "pages" / name).read_text(encoding="utf-8")


def document(
    title: str,
    body: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    sources: str = "",
) -> str:
    """A whole page with an HTML body, and styles and scripts from `dml_jax/pages`.

    Its content security policy stops a browser from loading anything, and from running any other
    script. `sources` are further rules of the policy, for a page that a server delivers.
    """
    code = "".join(map(resource, scripts))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data: {sources}; style-src 'unsafe-inline'"
    policy += f"; script-src 'sha256-{digest}'" if code else ""
    script = f"<script>{code}</script>" if code else ""
    style = "".join(map(resource, ("page.css", *styles)))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,"><title>{text(title)}</title><style>{style}</style></head>
<body><main>
{body}
</main>{script}</body></html>
"""  # noqa: E501


def write_report(
    file: Path,
    title: str,
    lead: str,
    sections: Iterable[Section],
    facts: Iterable[tuple[str, str]] = (),
) -> None:
    """Writes a page with a table of contents; sections without a body and facts without a value are
    omitted."""
    sections = [section for section in sections if section.body]
    anchors = {
        s.title: "section-" + re.sub(r"\W+", "-", s.title.lower()).strip("-") for s in sections
    }
    known = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts if value
    )
    links = "".join(f'<a href="#{anchor}">{text(title)}</a>' for title, anchor in anchors.items())
    body = f'<h1>{text(title)}</h1><p class="lead">{text(lead)}</p>' + (
        f"<dl>{known}</dl>" if known else ""
    )
    body += f'<nav aria-label="Contents">{links}</nav>'
    for section in sections:
        note = f" <small>{text(section.note)}</small>" if section.note else ""
        body += f'<h2 id="{anchors[section.title]}">{text(section.title)}{note}</h2>{section.body}'
    with atomic_write(file) as draft:
        draft.write_text(document(title, body), encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str, *, ours: int = -1) -> str:
    """A table in a scrollable frame, with `label` for screen readers; row `ours` is emphasised."""
    cells = [list(row) for row in rows]
    words = [
        i > 0 and all(any(map(str.isalpha, row[i])) for row in cells) for i in range(len(head))
    ]
    labels = [
        f' data-label="{text(name)}"' if i and len(head) > NARROW else ""
        for i, name in enumerate(head)
    ]
    kinds = [" class=words" if of_words else "" for of_words in words]
    heads = "".join(
        f'<th scope="col"{kind}>{text(name)}</th>' for name, kind in zip(head, kinds, strict=True)
    )
    lines = ""
    for i, row in enumerate(cells):
        shown = "".join(
            f"<td{kind}{of}>{text(cell)}</td>"
            for cell, kind, of in zip(row, kinds, labels, strict=True)
        )
        lines += f"<tr{' class=ours' if i == ours else ''}>{shown}</tr>"
    wide, tall = " class=wide" if len(head) > NARROW else "", " tall" if len(cells) > 20 else ""
    body = f"<table{wide}><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    return (
        f'<div class="scroll{tall}" tabindex="0" role="group" '
        f'aria-label="{text(label)}">{body}</div>'
    )


def listing(head: Sequence[str], rows: Sequence[Sequence[str | float]], label: str) -> str:
    """A table of the first rows: names, whole numbers, and fractions, which are shown in %."""

    def entry(value: str | float) -> str:
        if isinstance(value, str):
            return value
        return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"

    more = (
        f'<p class="note">The first {ROWS:,} of {len(rows):,} rows.</p>' if len(rows) > ROWS else ""
    )
    return (
        table(head, [[entry(value) for value in row] for row in rows[:ROWS]], f"table {label}")
        + more
    )


def chart(picture: bytes, name: str, caption: str) -> str:
    """A PNG file as a figure with the identifier `name`; `caption` is HTML."""
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    image = f'<img src="{source}" alt="Figure: {text(name.replace("_", " "))}">'
    frame = (
        '<div class="scroll" tabindex="0" role="group" aria-label="figure '
        f'{text(name)}">{image}</div>'
    )
    return (
        '<figure class="chart" '
        f'id="{text(name)}">{frame}<figcaption>{caption}</figcaption></figure>'
    )


def pictures(rows: Strips, name: str, caption: str) -> str:
    """Rows of thumbnails as a figure with the identifier `name`; `caption` is HTML."""
    strips = "".join(
        (f'<p class="strip-label">{text(label)}</p>' if label else "")
        + f'<div class="strip">{"".join(map(_tile, shown))}</div>'
        for label, shown in rows
    )
    return f'<figure id="{text(name)}"><figcaption>{caption}</figcaption>{strips}</figure>'


def _tile(picture: Picture) -> str:
    file = io.BytesIO()
    Image.fromarray(picture.pixels).save(file, "JPEG", quality=QUALITY, optimize=True)
    return (
        f'<div class="tile {picture.mark}" title="{text(picture.name)}: {text(picture.image)}">'
        f'<img src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}" '
        f'alt="{text(picture.image)}">'
        f'<span><b class="mark">{MARKS[picture.mark]}</b> {text(picture.note)}</span>'
        f"<span>{text(picture.name)}</span></div>"
    )
