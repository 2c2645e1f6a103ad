"""The second step of a preparation: every image is decoded; problems and duplicates are found.

Duplicates have equal pixels; near duplicates are found by `near_copies`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dml_jax.data import decode, transforms
from dml_jax.data.files import SPLITS, Entry
from dml_jax.data.prepare import near_copies
from dml_jax.data.read_ahead import ordered_map
from dml_jax.data.sources import Recipe
from dml_jax.errors import DataError, counted

MIN_SIDE = 8  # pixels

TABLE = "duplicates.csv"
KINDS = ("duplicates", "near duplicates")
PLACES = ("within a class", "across classes", "across splits", "across splits and classes")


class ImageFacts(NamedTuple):
    """Facts about an image that can be decoded."""

    sha256: bytes  # digest of the file
    pixels: bytes  # digest of its size and pixels, 16 bytes
    thumbnail: np.ndarray  # see `near_copies`
    rotated: bool  # whether its EXIF orientation is not upright


def incomplete(recipe: Recipe, entries: Sequence[Entry]) -> str:
    """The first split whose size is not the published one, as a sentence; "" if there is none."""
    for split, (images, classes) in (recipe.counts or {}).items():
        members = [entry.class_name for entry in entries if entry.split == split]
        if (len(members), len(set(members))) != (images, classes):
            has = f"{len(members)} images of {len(set(members))} classes"
            return f"{split} has {has} instead of {images} of {classes}"
    return ""


def too_few_classes(entries: Sequence[Entry]) -> str:
    """A sentence unless training and test have two classes, and validation none or two; or ""."""
    classes = {split: {e.class_name for e in entries if e.split == split} for split in SPLITS}
    train, validation, test = (len(classes[split]) for split in SPLITS[:3])
    if min(train, test) >= 2 and validation != 1:
        return ""
    names = sorted(set().union(*classes.values()))
    more = ", …" if len(names) > 3 else ""
    shown = f" ({', '.join(map(repr, names[:3]))}{more})" if names else ""
    remedy = "; dml-jax prepare --splits=classes divides all classes" if len(names) >= 4 else ""
    return (
        f"{counted(len(entries), 'image')} of {counted(len(names), 'class')}{shown}: {train} "
        f"training, {validation} validation and {test} test classes; at least 2 of each are "
        f"needed, but for validation, which may have none{remedy}"
    )


def inspect_images(
    entries: Sequence[Entry],
    progress: Callable[[int], None] = lambda done: None,
    use: Callable[[int, bytes, np.ndarray], None] = lambda i, data, pixels: None,
) -> tuple[dict[int, ImageFacts], dict[int, str]]:
    """Decodes all images; facts of the usable and reasons of the unusable ones, by index.

    Threads call `use` with index, file content and pixels uint8 [H, W, 3] of each usable image.
    """

    def inspect(i: int) -> ImageFacts | str:
        try:
            data = entries[i].file.read()
            with decode.decoded(data) as pixels:
                transforms.check_aspect(pixels)
                height, width, _ = pixels.shape
                if min(height, width) < MIN_SIDE:
                    return f"only {width}x{height} pixels"
                use(i, data, pixels)
                raw = np.ascontiguousarray(pixels).data
                digest = hashlib.blake2b(raw, digest_size=16, person=b"%d" % width).digest()
                thumbnail = near_copies.thumbnail(pixels)
        except DataError as error:
            return str(error)
        sha256 = hashlib.sha256(data).digest()
        return ImageFacts(sha256, digest, thumbnail, decode.is_rotated(data))

    facts, reasons = {}, {}
    for i, result in enumerate(ordered_map(inspect, range(len(entries)))):
        if isinstance(result, str):
            reasons[i] = result
        else:
            facts[i] = result
        progress(i + 1)
    return facts, reasons


def find_invalid(entries: Sequence[Entry], facts: Mapping[int, ImageFacts]) -> dict[int, str]:
    """Decodable images that are invalid as part of the data set: index -> reason.

    Invalid are duplicate names, names that are not UTF-8, the only image of a class, and queries
    whose class is not in the gallery.
    """
    reasons: dict[int, str] = {}
    names: set[str] = set()
    for i in facts:
        name = entries[i].id
        if name in names:
            reasons[i] = "is listed twice"
        elif any("\ud800" <= letter <= "\udfff" for letter in name):  # stand for undecodable bytes
            reasons[i] = "its name is not UTF-8"
        names.add(name)
    return reasons | find_unmatched(entries, set(facts) - set(reasons))


def find_unmatched(entries: Sequence[Entry], usable: set[int]) -> dict[int, str]:
    """Images without another image of their class to be retrieved: index -> reason."""
    counts = Counter((entries[i].split, entries[i].class_name) for i in usable)
    gallery = any(split == "gallery" for split, _ in counts)
    reasons = {}
    for i in sorted(usable):
        split, name = entries[i].split, entries[i].class_name
        if split == "test" and gallery:
            if not counts["gallery", name]:
                reasons[i] = f"its class {name!r} is not in the gallery"
        elif split != "gallery" and counts[split, name] == 1:
            reasons[i] = f"the only image of its class {name!r}"
    return reasons


def label_conflicts(images: Iterable[tuple[Hashable, str, str]]) -> str:
    """A warning about equal images in different classes; "" if there are none.

    `images` are digest, class and name of each. At most one of the labels can be right, but nobody
    can tell which: such images are named and kept, wherever images are read.
    """
    named: dict[Hashable, dict[str, str]] = {}  # digest -> class -> the first image
    for digest, label, name in images:
        named.setdefault(digest, {}).setdefault(label, name)
    shared = [names for names in named.values() if len(names) > 1]
    if not shared:
        return ""
    shown = [
        " = ".join(f"{name} (class {label})" for label, name in names.items())
        for names in shared[:2]
    ]
    verb = "is" if len(shared) == 1 else "are"
    return (
        f"warning: {counted(len(shared), 'image')} {verb} in more than one class, e.g. "
        f"{'; '.join(shown)}; at most one of the labels can be right, all are kept"
    )


def find_duplicates(
    entries: Sequence[Entry], facts: Mapping[int, ImageFacts]
) -> list[tuple[str, str, str, str]]:
    """Rows of kind, place and both names, the most harmful first.

    Each image is paired with the first similar one in each place.
    """
    chosen = sorted(facts)
    groups = [(entries[i].split, entries[i].class_name) for i in chosen]
    _, same = np.unique([facts[i].pixels.hex() for i in chosen], return_inverse=True)
    alike, near = near_copies.find(np.stack([facts[i].thumbnail for i in chosen]))
    places = _paired(alike.tolist(), near.tolist(), groups)
    places |= _paired(same.tolist(), (), groups)
    rows = sorted(
        (-place, bool(same[i] != same[j]), chosen[i], chosen[j]) for (i, j), place in places.items()
    )
    return [
        (KINDS[int(near)], PLACES[-place], entries[i].id, entries[j].id)
        for place, near, i, j in rows
    ]


def _paired(
    sets: Sequence[int], near: Iterable[Sequence[int]], groups: Sequence[tuple[str, str]]
) -> dict[tuple[int, int], int]:
    """Pairs of images that are in one set, or in sets that are `near`: position in `PLACES`.

    `groups` are split and class of each image. Each is paired with the first one in every place,
    because all pairs of a repeated image could be billions.
    """
    firsts: dict[int, dict[tuple[str, str], list[int]]] = {}  # the first two of each group
    for i, (which, group) in enumerate(zip(sets, groups, strict=True)):
        found = firsts.setdefault(which, {}).setdefault(group, [])
        if len(found) < 2:
            found.append(i)
    beside: dict[int, list[int]] = {which: [which] for which in firsts}
    for one, other in near:
        beside[one].append(other)
        beside[other].append(one)
    pairs = dict[tuple[int, int], int]()
    for i, (split, label) in enumerate(groups):
        partners = dict[int, int]()
        for which in beside[sets[i]]:
            for (other_split, other_label), images in firsts[which].items():
                place = 2 * (other_split != split) + (other_label != label)
                others = [j for j in images if j != i]
                if others:
                    partners[place] = min(others[0], partners.get(place, others[0]))
        pairs |= {(min(i, j), max(i, j)): place for place, j in partners.items()}
    return pairs
