"""The page of a catalogue: the same HTML with keys, from a server, and as a file without."""

import base64
import io
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

import numpy as np
from PIL import Image

from dml_jax.analysis import html
from dml_jax.analysis.catalogue import SHOWN, TABS, Catalogue, Group, Key, Tab
from dml_jax.analysis.changes import standing
from dml_jax.errors import counted
from dml_jax.files import atomic_write

# Groups on a page of a tab, and their look: two, many or single images.
GROUPS = {"labels": 12, "duplicates": 8, "clusters": 8, "blurred": 16, "odd": 16}
LOOKS = {"duplicates": " many", "clusters": " many", "blurred": " single", "odd": " single"}
SIDE, LARGE = 128, 1000  # pixels of the longer side of a thumbnail and of an enlarged image
EXPLAINED = {
    "labels": "Nearer to the mean of another class than to that of their own without them; beside "
    "the most similar image of that class. The percentage is the probability of a wrong label.",
    "duplicates": "Near-duplicates: the same photograph, scaled, compressed or cropped.",
    "clusters": "Similar images: the most typical one, then one of each class and those that "
    "differ most.",
    "blurred": "The least sharp images first (variance of the Laplacian).",
    "odd": "Those farthest from all others first (1 - cosine).",
}


def thumbnail(pixels: np.ndarray, side: int = SIDE) -> bytes:
    """A JPEG file of an image uint8 [H, W, 3] of at most `side` pixels."""
    picture, output = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((side, side))
    picture.save(output, "JPEG", quality=70 if side == SIDE else 85, optimize=True)
    return output.getvalue()


def write(found: Catalogue, title: str, file: Path) -> None:
    """Writes the first page of each tab as one file, which loads nothing else."""
    folder = os.path.relpath(found.images.folder, file.parent)

    def source(i: int) -> str:
        return (
            f"data:image/jpeg;base64,{base64.b64encode(thumbnail(found.images.read(i))).decode()}"
        )

    def link(i: int) -> str:
        return quote(os.fsencode(f"{folder}/{found.images.names[i][2:]}"))

    tabs = found.tabs()
    sections = [
        f'<section id="{name}">{_grid(found, name, tab, 0, source, link, keys=False)}</section>'
        for name, tab in tabs.items()
        if tab.order
    ]
    names = {name: f"#{name}" for name, tab in tabs.items() if tab.order}
    page = html.document(title, _head(found, title, tabs, names) + "".join(sections))
    with atomic_write(file) as draft:
        draft.write_text(page, encoding="utf-8")


def served(found: Catalogue, title: str, tab: str, page: int) -> str:
    """A page of a tab, or the list of changes, with keys."""
    tabs = found.tabs()
    names = {name: f"?tab={name}" for name in (*TABS, "changes")}

    def link(i: int) -> str:
        return f"?{urlencode({'image': i, 'tab': tab, 'page': page})}"

    if tab == "changes":
        body = _changes(found)
    else:
        body = _grid(found, tab, tabs[tab], page, lambda i: f"images/{i}", link, keys=True)
    form = f'<form method="post" action="./">{_hidden(tab, page)}{body}</form>'
    head = _head(found, title, tabs, names, tab)
    return html.document(title, head + form, "'self'")


def enlarged(found: Catalogue, title: str, i: int, tab: str, page: int) -> str:
    """An image beside its nearest ones, with keys to move it to any class or to remove it."""
    tiles = "".join(
        _tile(found, k, f"images/{k}", f"?{urlencode({'image': k, 'tab': tab, 'page': page})}")
        for k in found.images.nearest[i].tolist()
    )
    keys = _key(Key("delete", "delete", [i]))
    if found.folders:
        options = "".join(
            f"<option{' selected' * (name == found.labels[i])}>{html.text(name)}</option>"
            for name in found.classes
        )
        chosen = f'<label>Class <select name="to">{options}</select></label>'
        keys = f"{chosen} {_key(Key('move', 'move', [i]))} {keys}"
    name = html.text(found.images.names[i][2:])
    body = (
        f'<h1>{name}</h1><p class="lead">{html.text(found.labels[i])} '
        f'<a href="?{html.text(urlencode({"tab": tab, "page": page}))}">back</a></p>'
        f'<div class="side"><div><img class="large" src="images/{i}?large=1" alt="{name}">'
        f'<form method="post" action="./" class="keys">{_hidden(tab, page)}{keys}</form></div>'
        f'<div><h2>Nearest</h2><div class="strip">{tiles}</div></div></div>'
    )
    return html.document(f"{found.images.names[i][2:]}: {title}", body, "'self'")


def _hidden(tab: str, page: int) -> str:
    """Where the browser returns after a click."""
    values = ("tab", tab), ("page", page)
    return "".join(f'<input type="hidden" name="{name}" value="{v}">' for name, v in values)


def _head(
    found: Catalogue, title: str, tabs: dict[str, Tab], names: dict[str, str], now: str = ""
) -> str:
    counts = {name: len(tab.order) for name, tab in tabs.items() if name in TABS[:3]}
    counts["changes"] = len({each.click for each in standing(found.log)})
    links = ""
    for name, target in names.items():
        count = f" {counts[name]:,}" if counts.get(name) else ""
        mark = ' aria-current="page"' if name == now else ""
        links += f'<a href="{target}"{mark}>{name}{count}</a>'
    size = f"{counted(int((~found.gone).sum()), 'image')}"
    size += f" of {counted(len(found.classes), 'class')}" if found.classes else ""
    worth = "".join(f"<li>{html.text(line)}</li>" for line in found.worth())
    lead = f'<p class="lead">{size}</p>' + (f'<ul class="worth">{worth}</ul>' if worth else "")
    return f'<h1>{html.text(title)}</h1>{lead}<nav class="tabs" aria-label="Tabs">{links}</nav>'


def _grid(
    found: Catalogue,
    name: str,
    tab: Tab,
    page: int,
    source: Callable[[int], str],
    link: Callable[[int], str],
    *,
    keys: bool,
) -> str:
    """A page of a tab: its groups as cards, and links to the other pages."""
    size = GROUPS[name]
    shown = tab.order[page * size : (page + 1) * size]
    groups = [tab.group(k) for k in shown]
    cards = "".join(_card(found, group, source, link, keys=keys) for group in groups)
    pages = -(-len(tab.order) // size)
    about = f"{page + 1:,} of {pages:,}" if pages > 1 else ""
    if keys:
        for text, number in (("previous", page - 1), ("next", page + 1)):
            if 0 <= number < pages:
                about += f' <a href="?{urlencode({"tab": name, "page": number})}">{text}</a>'
    elif about:
        about += "; <code>--serve</code> shows all, <code>catalogue.csv</code> lists them"
    body = (
        f'<div class="grid{LOOKS.get(name, "")}">{cards}</div>' if cards else "<p>Nothing left.</p>"
    )
    return f'<p class="note">{EXPLAINED[name]}</p>{body}<p class="note pages">{about}</p>'


def _card(
    found: Catalogue,
    group: Group,
    source: Callable[[int], str],
    link: Callable[[int], str],
    *,
    keys: bool,
) -> str:
    images = group.images[:SHOWN]
    tiles = "".join(_tile(found, i, source(i), link(i)) for i in images)
    more = len(group.images) - len(images)
    text = html.text(group.text) + (f" ({more:,} not shown)" if more else "")
    buttons = "".join(map(_key, group.keys)) if keys else ""
    buttons = f'<div class="keys">{buttons}</div>' if buttons else ""
    return f'<article class="card"><p>{text}</p><div class="strip">{tiles}</div>{buttons}</article>'


def _tile(found: Catalogue, i: int, source: str, link: str) -> str:
    path = html.text(found.images.names[i][2:])
    name, label = path.rpartition("/")[2], html.text(found.labels[i])
    return (
        f'<a class="tile" href="{html.text(link)}" title="{path}"><img src="{source}" alt="{path}" '
        f'loading="lazy"><span>{name}</span><span>{label}</span></a>'
    )


def _key(key: Key) -> str:
    """A button; its value is the change, the images, and the class or the tab."""
    value = f"{key.change} {','.join(map(str, key.images))} {key.to}"
    return f'<button name="key" value="{html.text(value)}">{html.text(key.text)}</button>'


def _changes(found: Catalogue) -> str:
    """The clicks that stand, the last one first, each with a key to undo it."""
    clicks: dict[int, list[str]] = {}
    for each in standing(found.log):
        clicks.setdefault(each.click, []).append(f"{each.change} {each.image[2:]}")
    rows = ""
    for click, lines in sorted(clicks.items(), reverse=True)[:100]:
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        undo = f'<button name="key" value="undo {click} ">undo</button>'
        rows += f"<li>{html.text(lines[0])}{more} {undo}</li>"
    return f'<ul class="changes">{rows}</ul>' if rows else "<p>No changes yet.</p>"
