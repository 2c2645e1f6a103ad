"""The second step of a preparation: every image is decoded; problems and duplicates are found.

Duplicates have equal pixels; near duplicates have nearly equal difference hashes, as after resizing
or compression.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from dml_jax.data import decode, transforms
from dml_jax.data.files import SPLITS, Entry
from dml_jax.data.prepare import official
from dml_jax.data.prepare.sources import Recipe
from dml_jax.data.read_ahead import ordered_map
from dml_jax.errors import DataError, counted

MISSING = "missing"  # the reason of `files.File.read`
MIN_SIDE = 8  # pixels
CONTRAST = 2  # levels by which neighbouring patches must differ to set a bit of the difference hash

TABLE = "duplicates.csv"
MAX_DISTANCE = 5  # bits by which the difference hashes of near-duplicates may differ, of 128
MIN_BITS = 8  # images with fewer set bits have too little structure to be compared
KINDS = ("duplicates", "near duplicates")
PLACES = ("within a class", "across classes", "across splits", "across splits and classes")


class ImageFacts(NamedTuple):
    """Facts about an image that can be decoded."""

    sha256: bytes  # digest of the file
    pixels: bytes  # digest of its size and pixels, 16 bytes
    difference: np.ndarray  # uint8 [16], see `difference_hash`
    rotated: bool  # whether its EXIF orientation is not upright


def incomplete(recipe: Recipe, entries: Sequence[Entry]) -> str:
    """How a data set with a known size differs from it, which `--subset` accepts; empty if it does
    not."""
    for split, (images, classes) in (recipe.counts or {}).items():
        members = [entry.class_name for entry in entries if entry.split == split]
        if (len(members), len(set(members))) != (images, classes):
            return (
                f"{split} has {len(members)} images of {len(set(members))} classes instead of "
                f"{images} of {classes}"
            )
    return ""


def check_number_of_classes(entries: Sequence[Entry], sources: str) -> None:
    """Raises DataError unless there are two classes for training, two for test, and none or two for
    validation."""
    classes = {
        split: {entry.class_name for entry in entries if entry.split == split} for split in SPLITS
    }
    counts = {split: len(names) for split, names in classes.items()}
    if min(counts["train"], counts["test"]) < 2 or counts["validation"] == 1:
        names = sorted(set().union(*classes.values()))
        listed = (
            f" ({', '.join(map(repr, names[:3]))}{', …' if len(names) > 3 else ''})"
            if names
            else ""
        )
        raise DataError(
            f"{sources}: {counted(len(entries), 'image')} of "
            f"{counted(len(names), 'class')}{listed}: {counts['train']} training, "
            f"{counts['validation']} validation and {counts['test']} test classes; at least 2 of "
            "each are needed, but for validation, which may have none"
            + (
                "; dml-jax prepare --splits=classes divides all classes"
                if counts["validation"]
                else ""
            )
        )


def difference_hash(pixels: np.ndarray) -> np.ndarray:
    """Perceptual hash of 128 bits (uint8 [16]): comparisons of horizontal and vertical neighbours
    in a 9 x 9 image."""
    green = Image.fromarray(np.ascontiguousarray(pixels[:, :, 1]))
    small = np.asarray(green.resize((9, 9), Image.Resampling.BOX)).astype(np.int16)
    across = small[:8, 1:] > small[:8, :-1] + CONTRAST
    down = small[1:, :8] > small[:-1, :8] + CONTRAST
    return np.packbits(np.concatenate([across.ravel(), down.ravel()]))


def inspect_images(
    entries: Sequence[Entry],
    progress: Callable[[int], None] = lambda done: None,
    use: Callable[[int, bytes, np.ndarray], None] = lambda i, data, pixels: None,
) -> tuple[dict[int, ImageFacts], dict[int, str]]:
    """Decodes all images; returns facts of the usable and reasons of the unusable ones, both by
    index.

    `use` is called in the threads with index, content of the file and pixels, uint8 [H, W, 3], of
    each usable image.
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
                contiguous = np.ascontiguousarray(pixels)
                digest = hashlib.blake2b(
                    contiguous.data, digest_size=16, person=b"%d" % width
                ).digest()
                difference = difference_hash(contiguous)
        except DataError as error:
            return str(error)
        return ImageFacts(
            hashlib.sha256(data).digest(), digest, difference, decode.is_rotated(data)
        )

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
        elif any("\ud800" <= letter <= "\udfff" for letter in name):  # which stand for other bytes
            reasons[i] = "its name is not UTF-8"
        names.add(name)
    return reasons | _find_unmatched(entries, set(facts) - set(reasons))


def listed(unusable: Sequence[tuple[str, str]]) -> list[str]:
    """Lines that list unusable images, given as (name, reason); missing ones, often all of a
    folder, are one line."""
    missing = [name for name, reason in unusable if reason == MISSING]
    lines = [
        f"{name}: {reason}" for name, reason in unusable if reason != MISSING or len(missing) == 1
    ]
    if len(missing) > 1:
        example = ", ".join(missing[:3])
        lines.append(
            f"{counted(len(missing), 'image')} are missing, e.g. {example}; {official.ANOTHER}"
        )
    return lines


def _find_unmatched(entries: Sequence[Entry], usable: set[int]) -> dict[int, str]:
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
    """A warning about equal images in different classes; empty if there are none.

    `images` are digest, class and name of each. At most one of the labels can be right, but nobody
    can tell which: such images are named and kept, wherever images are read.
    """
    named: dict[Hashable, dict[str, str]] = {}  # digest -> class -> the first image
    for digest, label, name in images:
        named.setdefault(digest, {}).setdefault(label, name)
    shared = [of for of in named.values() if len(of) > 1]
    if not shared:
        return ""
    shown = (
        " = ".join(f"{name} (class {label})" for label, name in of.items()) for of in shared[:2]
    )
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
    splits, classes = (
        [getattr(entries[i], name) for i in chosen] for name in ("split", "class_name")
    )
    groups = np.stack(
        [np.unique(names, return_inverse=True)[1] for names in (splits, classes)], axis=1
    )
    digests = np.stack([np.frombuffer(facts[i].pixels, np.uint8) for i in chosen])
    differences = np.stack([facts[i].difference for i in chosen])
    structured = np.flatnonzero(np.bitwise_count(differences).sum(1) >= MIN_BITS)
    similar = find_pairs(differences[structured], groups[structured], MAX_DISTANCE)
    places = {(int(structured[i]), int(structured[j])): place for (i, j), place in similar.items()}
    places |= find_pairs(digests, groups, 0)
    rows = sorted(
        (-place, (digests[i] != digests[j]).any(), chosen[i], chosen[j])
        for (i, j), place in places.items()
    )
    return [
        (KINDS[int(near)], PLACES[-place], entries[i].id, entries[j].id)
        for place, near, i, j in rows
    ]


def find_pairs(
    values: np.ndarray, groups: np.ndarray, max_distance: int
) -> dict[tuple[int, int], int]:
    """Pairs of rows uint8 [N, W] that differ in at most `max_distance` bits, with their positions
    in `PLACES`.

    `groups` int [N, 2] are split and class. Each row is paired with the first one that it resembles
    in every place, as all pairs of a repeated row could be billions.
    """
    count = len(values)
    rows = np.concatenate([values, np.ascontiguousarray(groups, "<u4").view(np.uint8)], axis=1)
    _, firsts, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    distinct, of, which = values[firsts], groups[firsts], which.ravel()
    partners = np.full((len(PLACES), len(firsts)), count)  # beyond the end: none
    # Rows that differ in at most max_distance bits agree in at least one of this many blocks of up
    # to 4 bytes.
    for columns in np.array_split(
        np.arange(values.shape[1]), max(max_distance + 1, values.shape[1] // 4)
    ):
        block = np.zeros((len(distinct), 4), np.uint8)
        block[:, : len(columns)] = distinct[:, columns]
        for i, j in _equal_pairs(block.view(np.uint32)[:, 0]):
            near = (np.bitwise_count(distinct[i] ^ distinct[j]).sum(1) <= max_distance) & (i != j)
            i, j = i[near], j[near]
            split, name = (of[i] != of[j]).T.astype(int)
            np.minimum.at(partners, (2 * split + name, i), firsts[j])
    found = partners[:, which]
    found[0] = np.minimum(
        found[0], np.where(firsts[which] < np.arange(count), firsts[which], count)
    )
    places, images = np.nonzero(found < count)
    others = found[places, images]
    pairs = zip(
        np.minimum(images, others).tolist(), np.maximum(images, others).tolist(), strict=True
    )
    return dict(zip(pairs, places.tolist(), strict=True))


def _equal_pairs(keys: np.ndarray, chunk: int = 2**20) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of all pairs of equal keys, also of each with itself, about `chunk` pairs at a
    time."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begin, end = np.searchsorted(ordered, keys, "left"), np.searchsorted(ordered, keys, "right")
    counts = end - begin
    cuts = (
        np.searchsorted(np.cumsum(counts), np.arange(chunk, int(counts.sum()) + chunk, chunk)) + 1
    )
    for rows in np.split(np.arange(len(keys)), np.unique(np.clip(cuts, 0, len(keys)))):
        times = counts[rows]
        if times.sum():
            offsets = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
            yield np.repeat(rows, times), order[np.repeat(begin[rows], times) + offsets]
