"""The file of an index: a `.npz` file without pickled objects, whose arrays are checked when it is read."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation.background_margin import MAX_DIMENSIONS, Background
from dml_jax.evaluation.open_set import COSINE_RULES, Calibration
from dml_jax.files import atomic_write
from dml_jax.inference import thumbnails

FIELDS = ("embeddings", "labels", "classes", "images", "fingerprint")
CALIBRATION = tuple(f"calibration_{name}" for name in Calibration._fields if name != "background")
BACKGROUND = ("background_rows", "background_labels")
REMOVED = ("removed_embeddings", "removed_labels", "removed_classes", "removed_images")
THUMBNAILS = ("thumbnails", "thumbnail_ends")  # of the enrolled images, then of the removed ones


class Enrolled(NamedTuple):
    """Images in an index: embeddings float32 [N, D], N names, and N small JPEG files, which may be empty."""

    embeddings: np.ndarray
    images: list[str]
    thumbnails: list[bytes]


class Stored(NamedTuple):
    """The content of the file: labels int64 [N] are positions in `classes`, `removed` has the images of each class."""

    enrolled: Enrolled
    labels: np.ndarray
    classes: list[str]
    removed: dict[str, Enrolled]
    calibration: Calibration | None


def write(path: Path, stored: Stored, fingerprint: str) -> None:
    """Writes the index of a model with this fingerprint; see `Index.save`."""
    if path.suffix != ".npz":
        raise DataError(f"{path}: must end in .npz")
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no directory {path.parent}")
    enrolled, removed = stored.enrolled, list(stored.removed.values())
    arrays: dict[str, np.ndarray] = {
        "embeddings": enrolled.embeddings,
        "labels": stored.labels,
        "classes": np.array(stored.classes, np.str_),
        "images": np.array(enrolled.images, np.str_),
        "fingerprint": np.array(fingerprint),
    }
    if removed:
        embeddings = np.concatenate([each.embeddings for each in removed])
        labels = np.repeat(np.arange(len(removed)), [len(each.images) for each in removed])
        images = np.array([name for each in removed for name in each.images], np.str_)
        parts = (embeddings, labels, np.array(list(stored.removed), np.str_), images)
        arrays |= dict(zip(REMOVED, parts, strict=True))
    pictures = [picture for each in (enrolled, *removed) for picture in each.thumbnails]
    if any(pictures):
        arrays |= dict(zip(THUMBNAILS, thumbnails.pack(pictures), strict=True))
    if stored.calibration is not None:
        *measured, background = stored.calibration
        arrays |= {name: np.asarray(part) for name, part in zip(CALIBRATION, measured, strict=True)}
        if background is not None:
            arrays |= dict(zip(BACKGROUND, background, strict=True))
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: Path, fingerprint: str) -> Stored:
    """Reads an index of the model with this fingerprint; see `Index.load`."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            embeddings, labels, classes, images, model = (arrays[name] for name in FIELDS)
            calibration, background, removed, packed = (
                [arrays[name] for name in names if name in arrays.files]
                for names in (CALIBRATION, BACKGROUND, REMOVED, THUMBNAILS)
            )
    except Exception:  # NumPy and zipfile raise many types of exceptions for damaged files
        raise DataError(f"{path}: is not an index, or is damaged; enroll again") from None
    if str(model) != fingerprint:
        raise DataError(
            f"{path}: was created with another model or checkpoint, or other --flip or --scales; give those, or enroll "
            "again"
        )
    rules = (len(COSINE_RULES),)
    measured = [("f", 2, rules), ("f", 2, rules), ("f", 1, rules), ("i", 0, ()), ("i", 0, ())]
    count = images.size + (removed[-1].size if removed else 0)
    pictures = thumbnails.unpack(packed[0], packed[1], count) if len(packed) == 2 else [b""] * count
    consistent = (
        _are_classes(embeddings, labels, classes, images)
        and (not removed or (len(removed) == len(REMOVED) and _are_classes(*removed)))
        and (not removed or removed[0].shape[1] == embeddings.shape[1])
        and [(array.dtype.kind, array.ndim, array.shape[:1]) for array in calibration] in ([], measured)
        and all(array.size for array in calibration)
        and (not background or (len(calibration) > 0 and _is_background(background, embeddings.shape[1])))
    )
    if not consistent or pictures is None:
        raise DataError(f"{path}: has arrays of inconsistent types, sizes or values; enroll again")
    stored = Stored(Enrolled(embeddings, images.tolist(), pictures[: len(images)]), labels, classes.tolist(), {}, None)
    if removed:
        rows, of, names, files = removed
        for label, name in enumerate(names.tolist()):
            chosen = np.flatnonzero(of == label)
            kept = [pictures[len(images) + i] for i in chosen]
            stored.removed[name] = Enrolled(rows[chosen], files[chosen].tolist(), kept)
    if calibration:
        strangers, known, growth, number, of_classes = calibration
        others = Background(*background) if background else None
        found = Calibration(strangers, known, growth, int(number), int(of_classes), others)
        return stored._replace(calibration=found)
    return stored


def _are_classes(embeddings: np.ndarray, labels: np.ndarray, classes: np.ndarray, images: np.ndarray) -> bool:
    """Whether arrays of a file are embeddings, labels, names of classes and names of images."""
    kinds = [array.dtype.kind for array in (embeddings, labels, classes, images)]
    shapes = embeddings.ndim == 2 and embeddings.shape[:1] == labels.shape == images.shape and classes.ndim == 1
    return (
        kinds == ["f", "i", "U", "U"]
        and shapes
        and bool(np.isfinite(embeddings).all() and ((labels >= 0) & (labels < len(classes))).all())
    )


def _is_background(arrays: list[np.ndarray], dimensions: int) -> bool:
    """Whether arrays of a file are rows of unit length and labels of two classes or more."""
    if len(arrays) != 2 or [array.dtype.kind for array in arrays] != ["f", "i"]:
        return False
    rows, labels = arrays
    return (
        labels.ndim == 1
        and rows.shape == (len(labels), dimensions)
        and len(np.unique(labels)) > 1
        and dimensions <= MAX_DIMENSIONS
        and bool((np.abs(np.linalg.norm(rows.astype(np.float64), axis=1) - 1) < 1e-3).all())
    )
