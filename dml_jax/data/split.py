"""One split of a data set, as samplers, the input pipeline and evaluation use it."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_jax import seal
from dml_jax.data.files import SPLITS, Entry, Scalar
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import cache_dir, reading

SCAN = "a list of images"  # kind of a sealed directory in the cache

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
    # Further columns of the table that lists the images: name -> N values.
    metadata: Mapping[str, Sequence[Scalar]] = {}
    files: Sequence[str] = ()  # N absolute paths, if every image is a file
    note: str = ""  # a sentence for the user on how the data set was read; the same for all splits


def split_rows(rows: Sequence[Entry]) -> dict[str, Split]:
    """Images by split, with classes numbered by name; test and gallery share one numbering."""
    splits = {}
    for name in SPLITS:
        numbered = ("test", "gallery") if name in ("test", "gallery") else (name,)
        classes = sorted({row.class_name for row in rows if row.split in numbered})
        if members := [row for row in rows if row.split == name]:
            position = {label: i for i, label in enumerate(classes)}
            labels = np.array([position[row.class_name] for row in members], np.int64)
            columns = dict.fromkeys(column for row in members for column in row.metadata)
            metadata = {key: [row.metadata.get(key) for row in members] for key in columns}
            files = [str(row.file.path) for row in members]
            ids = [row.id for row in members]
            splits[name] = Split(labels, ids, unread, classes, files=files, metadata=metadata)
    return splits


def write_splits(path: Path, splits: Mapping[str, Split]) -> None:
    """Writes all but the images of splits; names that are not UTF-8 are escaped."""
    parts = {
        name: split._asdict() | {"labels": split.labels.tolist(), "read": None}
        for name, split in splits.items()
    }
    path.write_text(json.dumps(parts))


def read_splits(path: Path) -> dict[str, Split]:
    """Reads a file of `write_splits`; raises DataError if it is damaged."""
    with reading(path, "prepare the data set again"):
        parts = json.loads(path.read_bytes())
        return {
            name: Split(**part | {"labels": np.array(part["labels"], np.int64), "read": unread})
            for name, part in parts.items()
        }


def cache_splits(key: bytes, compute: Callable[[], Mapping[str, Split]]) -> Mapping[str, Split]:
    """The result of `compute`, from the user's cache directory if it has one of this key.

    A damaged entry is replaced; without a writable cache, the splits are computed every time.
    """
    directory = cache_dir() / "data" / hashlib.sha256(key).hexdigest()
    with contextlib.suppress(DataError, OSError):
        seal.read(directory, SCAN)
        return read_splits(directory / "splits.json")
    splits = compute()
    with contextlib.suppress(OSError), seal.write(directory, SCAN) as draft:
        write_splits(draft / "splits.json", splits)
    return splits


def digest(splits: Mapping[str, Split]) -> str:
    """SHA-256 of names and labels of all splits and, but for tensorflow_datasets, of the images."""
    sha256 = hashlib.sha256()
    for name, split in sorted(splits.items()):
        sha256.update(f"{name} {len(split.labels)}".encode())
        sha256.update(np.ascontiguousarray(split.labels).data)
        sha256.update("\n".join(split.ids).encode())
        sha256.update(split.content.encode())
    return sha256.hexdigest()


def with_gallery(splits: Mapping[str, Split], name: str = "test") -> dict[str, Split]:
    """A split and, if it is the test split, the "gallery" that its images search, if any."""
    names = ("test", "gallery") if name == "test" and "gallery" in splits else (name,)
    return {key: splits[key] for key in names}


def subset(split: Split, classes: np.ndarray) -> Split:
    """The images of some classes, relabelled 0, 1, … in the order of `classes`, int [C']."""
    new_label = np.full(len(split.classes), -1)
    new_label[classes] = np.arange(len(classes))
    selected = take(split, np.flatnonzero(new_label[split.labels] >= 0))
    labels = new_label[selected.labels].astype(np.int64)
    return selected._replace(labels=labels, classes=[split.classes[c] for c in classes])


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
    """Training and test split with classes reassigned at random; both keep their number of classes.

    Args:
      splits: "train" and "test"; ConfigError if there are others.
      number: selects the draw.
    """
    if splits.keys() != {"train", "test"}:
        others = ", ".join(sorted(splits.keys() - {"train", "test"}))
        raise ConfigError(f"data.class_split={number}: the data set has the split {others}; set 0")
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
    count = round(share * total)
    if count < 2 or total - count < 2:
        sizes = f"leaves {total - count} of {total} classes for training and {count} for validation"
        remedy = "give another share, or 0 with train.select=last"
        raise ConfigError(f"data.validation_share={share}: {sizes}; each needs 2, so {remedy}")
    order = np.random.default_rng(total).permutation(total)
    return subset(split, np.sort(order[count:])), subset(split, np.sort(order[:count]))


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
