"""One split of a data set, as samplers, the input pipeline and evaluation use it."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dml_jax.data.files import Scalar
from dml_jax.errors import ConfigError

Read = Callable[[int, np.random.Generator | None], np.ndarray]


def unread(index: int, rng: np.random.Generator | None) -> np.ndarray:
    """`Split.read` of a split without images."""
    raise NotImplementedError


class Split(NamedTuple):
    """One split of a data set."""

    # int64 [N], in 0..C-1; each split numbers its classes from 0, but a gallery like its queries.
    labels: np.ndarray
    ids: Sequence[str]  # N image names
    # (index, rng) -> uint8 [H, W, 3], RGB, or arrays of any other shape and type, the same for all.
    # Data sets with random images draw them by the generator `rng`; with None, as in every
    # evaluation, an index always gives the same image.
    read: Read
    classes: Sequence[str]  # C class names
    # SHA-256 of all pixels; empty for built-in data sets and those of tensorflow_datasets.
    content: str = ""
    # Further columns of the table that the images were listed in: name -> N values.
    metadata: Mapping[str, Sequence[Scalar]] = {}
    files: Sequence[str] = ()  # N absolute paths, if every image is a file
    note: str = ""  # a sentence for the user on how the data set was read; the same for all splits


def digest(splits: Mapping[str, Split]) -> str:
    """SHA-256 of names and labels of all splits and, but for tensorflow_datasets, of the images."""
    found = hashlib.sha256()
    for name, split in sorted(splits.items()):
        found.update(f"{name} {len(split.labels)}".encode())
        found.update(np.ascontiguousarray(split.labels).data)
        found.update("\n".join(split.ids).encode())
        found.update(split.content.encode())
    return found.hexdigest()


def with_gallery(splits: Mapping[str, Split], name: str = "test") -> dict[str, Split]:
    """A split and, if it is the test split, the "gallery" that its images search, if any."""
    names = ("test", "gallery") if name == "test" and "gallery" in splits else (name,)
    return {key: splits[key] for key in names}


def subset(split: Split, classes: np.ndarray) -> Split:
    """The images of some classes, relabelled 0, 1, … in the order of `classes`, int [C']."""
    new_label = np.full(len(split.classes), -1)
    new_label[classes] = np.arange(len(classes))
    kept = take(split, np.flatnonzero(new_label[split.labels] >= 0))
    labels = new_label[kept.labels].astype(np.int64)
    return kept._replace(labels=labels, classes=[split.classes[c] for c in classes])


def together(splits: Sequence[Split]) -> Split:
    """The images of several splits as one, with the classes of all by name."""
    classes = sorted({name for split in splits for name in split.classes})
    position = {name: label for label, name in enumerate(classes)}
    starts = np.cumsum([0, *(len(split.labels) for split in splits)])

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        part = int(np.searchsorted(starts, index, side="right")) - 1
        return splits[part].read(index - int(starts[part]), rng)

    numbers = [np.array([position[name] for name in split.classes]) for split in splits]
    labels = [number[split.labels] for number, split in zip(numbers, splits, strict=True)]
    columns = set.intersection(*(set(split.metadata) for split in splits))
    chain = itertools.chain.from_iterable
    return splits[0]._replace(
        labels=np.concatenate(labels).astype(np.int64),
        ids=list(chain(split.ids for split in splits)),
        read=read,
        classes=classes,
        metadata={k: list(chain(split.metadata[k] for split in splits)) for k in sorted(columns)},
        files=list(chain(split.files for split in splits)),
    )


def redrawn(splits: Mapping[str, Split], number: int) -> dict[str, Split]:
    """Training and test split with their classes dealt again, as many to each as before.

    Args:
      splits: "train" and "test"; ConfigError for others.
      number: selects the draw.
    """
    if splits.keys() != {"train", "test"}:
        other = ", ".join(sorted(splits.keys() - {"train", "test"}))
        raise ConfigError(f"data.class_split={number}: the data set has the split {other}; set 0")
    both = together([splits["train"], splits["test"]])
    order = np.random.default_rng(number).permutation(len(both.classes))
    count = len(splits["train"].classes)
    parts = {"train": order[:count], "test": order[count:]}
    return {name: subset(both, np.sort(classes)) for name, classes in parts.items()}


def hold_out(split: Split, share: float) -> tuple[Split, Split]:
    """Splits the classes of `split` into (training, validation).

    The choice depends on the data set alone, so that all seeds use the same validation set.
    """
    total = len(split.classes)
    held = round(share * total)
    if held < 2 or total - held < 2:
        left = f"leaves {total - held} of {total} classes for training and {held} for validation"
        remedy = "give another share, or 0 with train.select=last"
        raise ConfigError(f"data.validation_share={share}: {left}; each needs 2, so {remedy}")
    order = np.random.default_rng(total).permutation(total)
    return subset(split, np.sort(order[held:])), subset(split, np.sort(order[:held]))


def some_classes(split: Split, count: int, most: int) -> Split:
    """The images of `count` random classes of a split, at most `most` of them."""
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.unique(split.labels))[:count]
    rows = np.sort(rng.permutation(np.flatnonzero(np.isin(split.labels, classes)))[:most])
    return take(split, rows)


def take(split: Split, rows: np.ndarray) -> Split:
    """The images `rows` int [n] of a split, with their labels."""
    return split._replace(
        labels=split.labels[rows],
        ids=[split.ids[i] for i in rows],
        read=lambda index, rng: split.read(int(rows[index]), rng),
        metadata={name: [values[int(i)] for i in rows] for name, values in split.metadata.items()},
        files=[split.files[int(i)] for i in rows] if split.files else (),
    )
