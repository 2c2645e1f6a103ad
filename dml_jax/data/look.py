"""Whether the pixels of a source agree with how its folders or columns are read.

A network embeds a few images. Folders of one class in two splits are each other's nearest; classes
whose images mix may be one; and images of two splits that are nearly equal are near-copies. These
are hints: each line has its figure, and what is expected by chance.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dml_jax.class_names import likeness
from dml_jax.data.files import Entry, File, is_missing
from dml_jax.data.split import Split
from dml_jax.errors import DataError, counted

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

MOST = 200  # images
COPIES = 0.98  # cosine of images that are listed as near-copies
MIXED = 0.3  # share of the images of both classes whose nearest is in the other one
SHOWN = 3
NOTHING = "no classes mix, and no image is nearly one of another split"


def sample(entries: Sequence[Entry]) -> list[Entry]:
    """At most `MOST` images: as many of each folder as possible, and from all folders of a name or
    none."""
    rng, groups = np.random.default_rng(0), dict[str, list[Entry]]()
    for entry in entries:
        if not is_missing(entry.file):
            groups.setdefault(entry.class_name, []).append(entry)
    by_leaf: dict[str, list[str]] = {}
    for name in sorted(groups):
        by_leaf.setdefault(likeness(name.rpartition("/")[2]), []).append(name)
    folders = list[str]()
    for leaf in rng.permutation(sorted(by_leaf)).tolist():
        if 2 * len(folders + by_leaf[leaf]) <= MOST or not folders:
            folders += by_leaf[leaf]
    size = max(2, MOST // len(folders)) if folders else 0
    places = ((groups[name], rng.permutation(len(groups[name]))[:size]) for name in folders)
    return [images[i] for images, rows in places for i in sorted(rows.tolist())][:MOST]


def look(model: "EmbeddingModel", folders: Sequence[Entry], read: Sequence[Entry]) -> list[str]:
    """Lines about a source; DataError if fewer than two folders have usable images.

    Args:
      folders: the images, whose class is the path of their folder, or split and class of a table.
      read: the images as they are understood, the same or fewer; empty if they can be read in
        several ways.
    """
    images, errors = sample(folders), list[DataError]()
    (rows,) = model.embed_each([[entry.file.path for entry in images]], errors.append)
    usable = np.isfinite(rows).all(axis=1)
    images, rows = [images[i] for i in np.flatnonzero(usable)], rows[usable]
    names, labels = np.unique([entry.class_name for entry in images], return_inverse=True)
    if len(names) < 2:
        raise DataError("fewer than two folders hold usable images")
    summary = f"looked at {counted(len(images), 'image')} of {counted(len(names), 'folder')}"
    lines = [f"{summary}, {len(errors)} more cannot be used" if errors else summary]
    means = np.stack([rows[labels == i].mean(axis=0) for i in range(len(names))])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    near = means @ means.T - 2 * np.eye(len(names))
    nearest = near.argmax(axis=1)
    mutual = np.flatnonzero(nearest[nearest] == np.arange(len(names)))
    for kind, end in (("leaf", -1), ("top", 0)):
        part = np.array([likeness(name.split("/")[end]) for name in names.tolist()])
        same = part[:, None] == part
        if (chance := (same.sum() - len(names)) / (len(names) * (len(names) - 1))) in (0, 1):
            continue
        share = same[mutual, nearest[mutual]].mean() if len(mutual) else 0.0
        which = "last" if kind == "leaf" else "first"
        advice = f"; which speaks for --classes={kind}" if share > max(0.5, 2 * chance) else ""
        lines.append(
            f"folders that are each other's nearest have the same {which} name: "
            f"{100 * share:.0f} % of {len(mutual)} (by chance {100 * chance:.0f} %){advice}"
        )
    entry_of = {entry.id: entry for entry in read}
    both = [i for i, entry in enumerate(images) if entry.id in entry_of]
    problems = _check_reading([entry_of[images[i].id] for i in both], rows[both])
    return lines + (problems or ([NOTHING] if both else []))


def summarise(splits: Mapping[str, Split], rows: Mapping[str, np.ndarray]) -> str:
    """One line about the splits of a data set that a run has embedded anyway.

    Args:
      splits: the splits, by name.
      rows: the embeddings of their images by published weights, float32 [N, D] for each split.
    """
    entries = [
        Entry(f"{key}/{i}: {name}", File(Path()), split.classes[label], key)
        for key, split in splits.items()
        for i, (name, label) in enumerate(zip(split.ids, split.labels, strict=True))
    ]
    images, row_of = sample(entries), {entry.id: i for i, entry in enumerate(entries)}
    sampled = np.concatenate([rows[key] for key in splits])[[row_of[entry.id] for entry in images]]
    lines = _check_reading(images, sampled / np.linalg.norm(sampled, axis=1, keepdims=True))
    more = f" (and {len(lines) - 1} more lines of dml-jax inspect --look)" if lines[1:] else ""
    number = counted(len(images), "image")
    return f"look at {number} of {' and '.join(splits)}: {(lines or [NOTHING])[0]}{more}"


def _check_reading(entries: Sequence[Entry], rows: np.ndarray) -> list[str]:
    """Lines about classes whose images mix, and near-copies in two splits; rows float32 [N, D]."""
    if len(entries) < 2:
        return []
    cosines = rows @ rows.T - 2 * np.eye(len(rows), dtype=np.float32)
    names, labels = np.unique([entry.class_name for entry in entries], return_inverse=True)
    lines, nearest = list[str](), labels[cosines.argmax(axis=1)]
    counts = np.bincount(labels, minlength=len(names))
    shares = np.zeros((len(names), len(names)))
    np.add.at(shares, (labels, nearest), 1 / counts[labels])
    both = np.triu(np.minimum(shares, shares.T), 1)
    for i, j in np.argwhere(both >= MIXED)[:SHOWN].tolist():
        pair = f"{str(names[i])!r} and {str(names[j])!r}"
        lines.append(
            f"the images of {pair} mix: {100 * both[i, j]:.0f} % of the nearest are in the other "
            f"(by chance {100 / len(names):.0f} %); perhaps one class"
        )
    splits = np.array([entry.split for entry in entries])
    across = (splits[:, None] != splits) & (cosines >= COPIES)
    pairs = np.argwhere(np.triu(across, 1)).tolist()
    lines += [
        f"near-copies in two splits: {entries[i].id!r} and {entries[j].id!r}, cosine "
        f"{cosines[i, j]:.3f}"
        for i, j in pairs[:SHOWN]
    ]
    more = f"and {counted(len(pairs) - SHOWN, 'pair')} more of near-copies in two splits"
    return [*lines, more] if len(pairs) > SHOWN else lines
