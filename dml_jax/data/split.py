"""One split of a data set, as samplers, the input pipeline and evaluation use it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dml_jax.data.prepare.sources import Scalar
from dml_jax.errors import DataError

Read = Callable[[int, np.random.Generator | None], np.ndarray]


class Split(NamedTuple):
    """One split of a data set."""

    # int64 [N], in 0..C-1; each split numbers its own classes, but a gallery shares those of its queries.
    labels: np.ndarray
    ids: Sequence[str]  # N image names
    # (index, rng) -> uint8 [H, W, 3], RGB. Data sets with randomly generated images draw them from `rng`, a
    # `numpy.random.Generator`; with None, as in every evaluation, an index always gives the same image.
    read: Read
    classes: Sequence[str]  # C class names
    # The images among which this split's images are retrieved (In-Shop); None if queries and gallery are the same
    # images.
    gallery: "Split | None" = None
    # SHA-256 of the data set that the split belongs to, pixels included; empty if it is built in or one of
    # tensorflow_datasets.
    content: str = ""
    # Further columns of the table that the images were listed in: name -> N values.
    metadata: Mapping[str, Sequence[Scalar]] = {}
    note: str = ""  # a sentence for the user on how the data set was read; the same for all splits


def check_disjoint(splits: Mapping[str, Split]) -> None:
    """Raises DataError unless there are classes for training and others for testing."""
    if missing := {"train", "test"} - set(splits):
        raise DataError(
            f"there are no {missing.pop()} images: at least 2 classes are needed for training, and 2 others for "
            "testing (4 in a folder, half of which are tested)"
        )
    shared = set(splits["train"].classes) & set(splits["test"].classes)
    if shared:
        raise DataError(
            f"{len(shared)} classes, e.g. {min(shared)!r}, are in both training and test: retrieval is evaluated on "
            "unseen classes; put every class into one split only"
        )


def digest(splits: Mapping[str, Split]) -> str:
    """SHA-256 of the image names and labels of all splits and, except for tensorflow_datasets, of the images."""
    found = hashlib.sha256()
    for name, split in sorted(splits.items()):
        found.update(f"{name} {len(split.labels)}".encode())
        found.update(np.ascontiguousarray(split.labels).data)
        for start in range(0, len(split.ids), 2**16):  # ten million names at once would take a gigabyte
            found.update(("\n" * (start > 0) + "\n".join(split.ids[start : start + 2**16])).encode())
        found.update(split.content.encode())
    return found.hexdigest()


def with_gallery(splits: Mapping[str, Split]) -> dict[str, Split]:
    """The splits by name, and under "gallery" the gallery of the one that has it, if any."""
    gallery = next((split.gallery for split in splits.values() if split.gallery is not None), None)
    return {**splits} if gallery is None else {**splits, "gallery": gallery}
