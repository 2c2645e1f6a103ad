"""The second step of a preparation: every image is decoded; problems and duplicates are found.

Duplicates have equal pixels; near duplicates, e.g. compressed ones, similar difference hashes.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from dml_jax.data import decode, transforms
from dml_jax.data.files import SPLITS, Entry
from dml_jax.data.read_ahead import ordered_map
from dml_jax.data.sources import Recipe
from dml_jax.errors import DataError, counted

MIN_SIDE = 8  # pixels
CONTRAST = 2  # levels by which neighbouring patches must differ to set a bit of the difference hash

TABLE = "duplicates.csv"
WINDOW = 128  # rows that agree in a block with which each is compared
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


def difference_hash(pixels: np.ndarray) -> np.ndarray:
    """Hash of 128 bits (uint8 [16]): compares the neighbours in a 9 x 9 image, both ways."""
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
                difference = difference_hash(pixels)
        except DataError as error:
            return str(error)
        sha256 = hashlib.sha256(data).digest()
        return ImageFacts(sha256, digest, difference, decode.is_rotated(data))

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
    columns = [entries[i].split for i in chosen], [entries[i].class_name for i in chosen]
    groups = np.stack([np.unique(column, return_inverse=True)[1] for column in columns], axis=1)
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
    """Pairs of rows uint8 [N, W] that differ in at most `max_distance` bits: position in `PLACES`.

    `groups` int [N, 2] are split and class. Each row is paired with the first one that it resembles
    in every place, because all pairs of a repeated row could be billions.

    Rows that differ in fewer bits than there are blocks of columns agree in a block. Of the rows
    that agree in a block, sorted by the next ones, each is compared with the `WINDOW` before it. So
    the time is linear, however many images have the same background, and all pairs are found
    unless more than `WINDOW` different rows agree in each of their common blocks.
    """
    # Rows of one group with equal values are compared as one, the first of them.
    rows = np.concatenate([values, np.ascontiguousarray(groups, "<u4").view(np.uint8)], axis=1)
    _, firsts, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    distinct, group, none = values[firsts], groups[firsts], len(values)
    partners = np.full((len(PLACES), len(firsts)), none)  # the first similar row in each place
    count = max(max_distance + 1, values.shape[1] // 4)
    blocks = [np.zeros((len(firsts), 4), np.uint8) for _ in range(count)]
    for block, columns in zip(
        blocks, np.array_split(np.arange(values.shape[1]), count), strict=True
    ):
        block[:, : len(columns)] = distinct[:, columns]
    keys = [block.view(np.uint32)[:, 0] for block in blocks]
    for b, key in enumerate(keys):
        order = np.lexsort([*reversed(keys[:b]), *reversed(keys[b:])])
        for offset in range(1, min(WINDOW + 1, len(order))):
            i, j = order[offset:], order[:-offset]
            agreeing = key[i] == key[j]
            if not agreeing.any():
                break
            i, j = i[agreeing], j[agreeing]
            near = np.bitwise_count(distinct[i] ^ distinct[j]).sum(1) <= max_distance
            i, j = i[near], j[near]
            across_splits, across_classes = (group[i] != group[j]).T.astype(int)
            for first, second in ((i, j), (j, i)):
                place = 2 * across_splits + across_classes, first
                np.minimum.at(partners, place, firsts[second])
    number = number.ravel()
    partner = partners[:, number]
    first = firsts[number]
    repeats = np.where(first < np.arange(none), first, none)
    partner[0] = np.minimum(partner[0], repeats)
    places, images = np.nonzero(partner < none)
    pairs = np.sort(np.stack([images, partner[places, images]], axis=1), axis=1)
    return {(i, j): place for (i, j), place in zip(pairs.tolist(), places.tolist(), strict=True)}
