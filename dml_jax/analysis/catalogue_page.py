"""The page of a catalogue: as a file, and with buttons from a server."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from dml_jax.analysis import html
from dml_jax.analysis.catalogue import SHOWN, TABS, Button, Catalogue, Group, Tab
from dml_jax.analysis.changes import standing
from dml_jax.errors import counted
from dml_jax.files import atomic_write

# Groups on a page of a tab, at most 2,000 pixels tall on a telephone, and their look: two, many or
# single images.
GROUPS = {"labels": 8, "duplicates": 4, "clusters": 4, "blurred": 16, "odd": 16}
LOOKS = {"duplicates": " many", "clusters": " many", "blurred": " single", "odd": " single"}
SIDE = 128  # pixels of the longer side of a thumbnail
EXPLAINED = {
    "labels": "Images that resemble another class more than their own, each with the most similar "
    "image of that class. The percentage is the probability that the label is wrong.",
    "duplicates": "The same photograph, scaled, compressed or cropped.",
    "clusters": "Similar images: the most typical one, then one of each class, then those that "
    "differ most.",
    "blurred": "The least sharp images first. Sharpness is the variance of the Laplacian.",
    "odd": "Images that resemble no other image. The distance to the nearest one is 1 - cosine.",
}


def write(catalogue: Catalogue, title: str, file: Path) -> None:
    """Writes the first page of each tab as one file, which loads nothing else."""
    images, folder = catalogue.images, os.path.relpath(catalogue.images.folder, file.parent)
    grid = _Grid(
        catalogue,
        source=lambda i: html.embedded(html.jpeg(images.read(i), SIDE)),
        link=lambda i: quote(os.fsencode(f"{folder}/{images.names[i][2:]}")),
    )
    tabs = {name: tab for name, tab in catalogue.tabs().items() if tab.order}
    body = "".join(f'<section id="{n}">{grid.page(n, tab, 0)}</section>' for n, tab in tabs.items())
    head = _head(catalogue, title, tabs, {name: f"#{name}" for name in tabs})
    with atomic_write(file) as draft:
        draft.write_text(html.document(title, head + body), encoding="utf-8")


def served(catalogue: Catalogue, title: str, tab: str, page: int) -> str:
    """A page of a tab, or the list of changes, with buttons."""
    tabs = catalogue.tabs()
    if tab == "changes":
        body = _changes(catalogue)
    else:
        body = _served_grid(catalogue, tab, page).page(tab, tabs[tab], page)
    form = f'<form method="post" action="./">{_hidden(tab, page)}{body}</form>'
    links = {name: f"?tab={name}" for name in (*TABS, "changes")}
    return html.document(title, _head(catalogue, title, tabs, links, tab) + form, "'self'")


def enlarged(catalogue: Catalogue, title: str, i: int, tab: str, page: int) -> str:
    """An image beside its nearest ones, with buttons that move it to any class or delete it."""
    grid = _served_grid(catalogue, tab, page)
    tiles = "".join(map(grid.tile, catalogue.images.nearest[i].tolist()))
    buttons, label = _button(Button("delete", "delete", [i])), catalogue.labels[i]
    if catalogue.folders:
        options = "".join(
            f"<option{' selected' * (name == label)}>{html.text(name)}</option>"
            for name in catalogue.classes
        )
        chosen = f'<label>Class <select name="to">{options}</select></label>'
        buttons = f"{chosen} {_button(Button('move', 'move', [i]))} {buttons}"
    path = catalogue.images.names[i][2:]
    name, back = html.text(path), html.text(f"?{urlencode({'tab': tab, 'page': page})}")
    body = (
        f'<h1>{name}</h1><p class="lead">{html.text(label)} <a href="{back}">back</a></p>'
        f'<div class="side"><div><img class="large" src="images/{i}?large=1" alt="{name}">'
        f'<form method="post" action="./" class="buttons">{_hidden(tab, page)}{buttons}</form>'
        f'</div><div><h2>Nearest images</h2><div class="strip">{tiles}</div></div></div>'
    )
    return html.document(f"{path}: {title}", body, "'self'")


def _served_grid(catalogue: Catalogue, tab: str, page: int) -> "_Grid":
    def link(i: int) -> str:
        return f"?{urlencode({'image': i, 'tab': tab, 'page': page})}"

    return _Grid(catalogue, lambda i: f"images/{i}", link, buttons=True)


def _hidden(tab: str, page: int) -> str:
    """Where the browser returns after a click."""
    values = ("tab", tab), ("page", page)
    return "".join(f'<input type="hidden" name="{name}" value="{v}">' for name, v in values)


def _head(
    catalogue: Catalogue,
    title: str,
    tabs: Mapping[str, Tab],
    targets: Mapping[str, str],
    current: str = "",
) -> str:
    """The title, the sizes, what corrections are worth, and links to the tabs."""
    counts = {name: len(tab.order) for name, tab in tabs.items() if name in TABS[:3]}
    counts["changes"] = len({each.click for each in standing(catalogue.log)})
    links = ""
    for name, target in targets.items():
        count = f" {counts[name]:,}" if counts.get(name) else ""
        mark = ' aria-current="page"' if name == current else ""
        links += f'<a href="{target}"{mark}>{name}{count}</a>'
    size = counted(int((~catalogue.gone).sum()), "image")
    size += f" of {counted(len(catalogue.classes), 'class')}" if catalogue.classes else ""
    return (
        f'<h1>{html.text(title)}</h1><p class="lead">{size}</p>{html.worth(catalogue.worth)}'
        f'<nav class="tabs" aria-label="Tabs">{links}</nav>'
    )


@dataclass(frozen=True)
class _Grid:
    """The pages of tabs, by the addresses of an image's thumbnail and of what a click shows."""

    catalogue: Catalogue
    source: Callable[[int], str]
    link: Callable[[int], str]
    buttons: bool = False

    def page(self, name: str, tab: Tab, page: int) -> str:
        """Groups as cards, and links to the other pages."""
        size = GROUPS[name]
        cards = [self._card(tab.group(k)) for k in tab.order[page * size : (page + 1) * size]]
        pages = -(-len(tab.order) // size)
        about = f"{page + 1:,} of {pages:,}" if pages > 1 else ""
        if self.buttons:
            for text, number in (("previous", page - 1), ("next", page + 1)):
                if 0 <= number < pages:
                    query = html.text(urlencode({"tab": name, "page": number}))
                    about += f' <a href="?{query}">{text}</a>'
        elif about:
            about += "; <code>--serve</code> shows all, <code>catalogue.csv</code> lists them"
        grid = f'<div class="grid{LOOKS.get(name, "")}">{"".join(cards)}</div>'
        body = grid if cards else "<p>Nothing left.</p>"
        return f'<p class="note">{EXPLAINED[name]}</p>{body}<p class="note pages">{about}</p>'

    def _card(self, group: Group) -> str:
        tiles = "".join(map(self.tile, group.images[:SHOWN]))
        hidden = len(group.images) - SHOWN
        text = html.text(group.text) + (f" ({hidden:,} not shown)" if hidden > 0 else "")
        buttons = "".join(map(_button, group.buttons)) if self.buttons else ""
        buttons = f'<div class="buttons">{buttons}</div>' if buttons else ""
        strip = f'<div class="strip">{tiles}</div>'
        return f'<article class="card"><p>{text}</p>{strip}{buttons}</article>'

    def tile(self, i: int) -> str:
        """An image with the name of its file and its class."""
        path = self.catalogue.images.names[i][2:]
        lines = html.text(path.rpartition("/")[2]), html.text(self.catalogue.labels[i])
        return html.tile(self.source(i), path, lines, link=self.link(i))


def _button(button: Button) -> str:
    """A button; its value is the change, the images, and the class or the tab."""
    value = f"{button.change} {','.join(map(str, button.images))} {button.to}"
    return f'<button name="key" value="{html.text(value)}">{html.text(button.text)}</button>'


def _changes(catalogue: Catalogue) -> str:
    """The clicks that were not undone, the last one first, each with a button to undo it."""
    clicks: dict[int, list[str]] = {}
    for each in standing(catalogue.log):
        folder = f" to {each.to[2:].rpartition('/')[0]}" if each.change in ("move", "merge") else ""
        clicks.setdefault(each.click, []).append(f"{each.change} {each.image[2:]}{folder}")
    rows = ""
    for click, lines in sorted(clicks.items(), reverse=True)[:100]:
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        undo = f'<button name="key" value="undo {click} ">undo</button>'
        rows += f"<li>{html.text(lines[0])}{more} {undo}</li>"
    if not rows:
        return "<p>No changes yet.</p>"
    about = "No file has moved yet: stop the server with Ctrl-C, then use <code>--apply</code>."
    return f'<p class="note">{about}</p><ul class="changes">{rows}</ul>'
