"""Which images of a source can be used.

Every image is decoded once, in `prepare` and the first time that a run reads a folder in place.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dml_jax.data import decode, near_copies, transforms
from dml_jax.data.files import Entry, File
from dml_jax.data.read_ahead import ordered_map
from dml_jax.data.sources import Recipe, leave_out
from dml_jax.errors import DataError, counted

MIN_SIDE = 8  # pixels
PUBLISHED = "accept a part of the data set with --subset"


class Facts(NamedTuple):
    """Facts about a usable image."""

    sha256: bytes  # digest of the original file
    pixels: bytes  # digest of its size and pixels, 16 bytes
    thumbnail: np.ndarray  # see `near_copies`
    rotated: bool  # whether its EXIF orientation is not upright


class Checked(NamedTuple):
    """The usable images of a source."""

    entries: list[Entry]
    facts: list[Facts]
    skipped: list[tuple[str, str]]  # names of the other images, and why they are left out
    conflicts: str  # see `label_conflicts`


def check_images(
    entries: Sequence[Entry],
    recipe: Recipe,
    say: Callable[[str], object],
    *,
    strict: bool = False,
    whole: bool = False,
    store: Callable[[Entry, bytes, np.ndarray], File] = lambda entry, data, pixels: entry.file,
    progress: Callable[[int], None] = lambda done: None,
) -> Checked:
    """Decodes all images, leaves out those that cannot be used, and names them.

    Args:
      say: gets the lines about images that are left out.
      strict: whether such images are an error.
      whole: whether they are an error because the published data set must be complete.
      store: (image, content of its file, pixels uint8 [H, W, 3]) -> the file to be stored; called
        by several threads.
      progress: gets the number of images checked.

    Raises:
      DataError: too few classes have usable images.
    """

    def check(entry: Entry) -> tuple[Entry, Facts] | str:
        try:
            data = entry.file.read()
            with decode.decoded(data) as pixels:
                transforms.check_aspect(pixels)
                height, width, _ = pixels.shape
                if min(height, width) < MIN_SIDE:
                    return f"only {width}x{height} pixels"
                raw = np.ascontiguousarray(pixels).data
                facts = Facts(
                    hashlib.sha256(data).digest(),
                    hashlib.blake2b(raw, digest_size=16, person=b"%d" % width).digest(),
                    near_copies.thumbnail(pixels),
                    decode.is_rotated(data),
                )
                return entry._replace(file=store(entry, data, pixels)), facts
        except DataError as error:
            return str(error)

    check_classes(entries)
    usable, reasons = dict[int, tuple[Entry, Facts]](), dict[int, str]()
    for i, result in enumerate(ordered_map(check, entries)):
        if isinstance(result, str):
            reasons[i] = result
        else:
            usable[i] = result
        progress(i + 1)
    if recipe.counts is None:
        reasons |= find_invalid(entries, usable)
    skipped = [(entries[i].id, reasons[i]) for i in sorted(reasons)]
    remedy = PUBLISHED if whole else "leave --strict out"
    leave_out(skipped, len(entries), say, strict=strict or whole, remedy=remedy)
    pairs = [pair for i, pair in usable.items() if i not in reasons]
    check_classes([entry for entry, _ in pairs])
    conflicts = label_conflicts((f.pixels, e.class_name, e.id) for e, f in pairs)
    return Checked([e for e, _ in pairs], [f for _, f in pairs], skipped, conflicts)


def check_classes(entries: Iterable[Entry]) -> None:
    """Raises DataError unless training and test have two classes, and validation none or two."""
    pairs = [(entry.split, entry.class_name) for entry in entries]
    sizes = Counter(split for split, _ in {*pairs})
    if min(sizes["train"], sizes["test"]) >= 2 and sizes["validation"] != 1:
        return
    names = sorted({name for _, name in pairs})
    examples = f" ({', '.join(map(repr, names[:3]))}{', …' if names[3:] else ''})" if names else ""
    remedy = "; dml-jax prepare --splits=classes divides all classes" if len(names) >= 4 else ""
    raise DataError(
        f"{counted(len(pairs), 'image')} of {counted(len(names), 'class')}{examples}: "
        f"{sizes['train']} training, {sizes['validation']} validation and {sizes['test']} test "
        "classes; at least 2 of each are needed, but for validation, which may have none"
        f"{remedy}"
    )


def check_counts(recipe: Recipe, entries: Sequence[Entry]) -> None:
    """Raises DataError if a split has not the size that is published for the data set."""
    for split, (images, classes) in (recipe.counts or {}).items():
        members = [entry.class_name for entry in entries if entry.split == split]
        if (len(members), len({*members})) != (images, classes):
            has = f"{len(members)} images of {len({*members})} classes"
            raise DataError(f"{split} has {has} instead of {images} of {classes}")


def find_invalid(entries: Sequence[Entry], usable: Collection[int]) -> dict[int, str]:
    """The `usable` images that are invalid as part of the data set: index -> reason.

    Invalid are duplicate names, names that are not UTF-8, the only image of a class, and queries
    whose class is not in the gallery.
    """
    reasons, names = dict[int, str](), set[str]()
    for i in sorted(usable):
        name = entries[i].id
        if name in names:
            reasons[i] = "is listed twice"
        elif any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are not UTF-8
            reasons[i] = "its name is not UTF-8"
        names.add(name)
    members = [i for i in sorted(usable) if i not in reasons]
    counts = Counter((entries[i].split, entries[i].class_name) for i in members)
    gallery = any(split == "gallery" for split, _ in counts)
    for i in members:
        split, name = entries[i].split, entries[i].class_name
        if split == "test" and gallery:
            if not counts["gallery", name]:
                reasons[i] = f"its class {name!r} is not in the gallery"
        elif split != "gallery" and counts[split, name] == 1:
            reasons[i] = f"the only image of its class {name!r}"
    return reasons


def label_conflicts(images: Iterable[tuple[Hashable, str, str]]) -> str:
    """A warning about equal images in different classes; "" if there are none.

    At most one of the labels can be right, but nobody can tell which, so all are kept.

    Args:
      images: digest, class and name of each.
    """
    names: dict[Hashable, dict[str, str]] = {}  # digest -> class -> the first image
    for digest, label, name in images:
        names.setdefault(digest, {}).setdefault(label, name)
    shared = [by_class.items() for by_class in names.values() if len(by_class) > 1]
    if not shared:
        return ""
    equal = [" = ".join(f"{name} (class {label})" for label, name in each) for each in shared[:2]]
    verb = "is" if len(shared) == 1 else "are"
    return (
        f"warning: {counted(len(shared), 'image')} {verb} in more than one class, e.g. "
        f"{'; '.join(equal)}; at most one of the labels can be right, all are kept"
    )
