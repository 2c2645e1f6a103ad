"""Duplicates among the images of a data set, found by their hashes without comparing all pairs.

Duplicates have equal pixels; near duplicates have nearly equal difference hashes, as after resizing or compression.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_jax.data.prepare.check import ImageFacts
from dml_jax.data.prepare.sources import Entry
from dml_jax.files import write_csv

TABLE = "duplicates.csv"
MAX_DISTANCE = 5  # bits by which the difference hashes of near-duplicates may differ, of 128
MIN_BITS = 8  # images with fewer set bits have too little structure to be compared
PLACES = ("within a class", "across classes", "across splits")
HEAD = ("kind", "where", "first", "second")


class Pair(NamedTuple):
    """Two images that are duplicates or near duplicates."""

    # first, second: positions, increasing
    first: int
    second: int
    place: int  # position in `PLACES`
    exact: bool  # whether the pixels are equal


def find(entries: Sequence[Entry], facts: Mapping[int, ImageFacts]) -> list[Pair]:
    """Pairs each image with the first one that it resembles in its class, in other classes of its split, and in other
    splits."""
    chosen = np.array(sorted(facts), np.int64)
    if not len(chosen):
        return []
    splits, classes = ([getattr(entries[i], name) for i in chosen] for name in ("split", "class_name"))
    groups = np.stack([np.unique(names, return_inverse=True)[1] for names in (splits, classes)], axis=1)
    digests = np.stack([np.frombuffer(facts[i].pixels, np.uint8) for i in chosen])
    differences = np.stack([facts[i].difference for i in chosen])
    structured = np.flatnonzero(np.bitwise_count(differences).sum(1) >= MIN_BITS)
    similar = find_pairs(differences[structured], groups[structured], MAX_DISTANCE)
    found = {(int(structured[i]), int(structured[j])): place for (i, j), place in similar.items()}
    found |= find_pairs(digests, groups, 0)
    named = {(int(chosen[i]), int(chosen[j])): place for (i, j), place in found.items()}
    return [Pair(i, j, place, facts[i].pixels == facts[j].pixels) for (i, j), place in sorted(named.items())]


def table(entries: Sequence[Entry], pairs: Sequence[Pair]) -> list[tuple[str, str, str, str]]:
    """Rows of the kind, the place and both names; the most harmful pairs first."""
    ordered = sorted(pairs, key=lambda pair: (-pair.place, not pair.exact, pair.first))
    return [
        (
            "duplicates" if pair.exact else "near duplicates",
            PLACES[pair.place],
            entries[pair.first].id,
            entries[pair.second].id,
        )
        for pair in ordered
    ]


def write(directory: Path, rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Writes the table of pairs."""
    with (directory / TABLE).open("w", newline="", encoding="utf-8") as file:
        write_csv(file, [HEAD, *rows])


def to_drop(entries: Sequence[Entry], facts: Mapping[int, ImageFacts], pairs: Sequence[Pair]) -> dict[int, str]:
    """Positions of the images to leave out, with the reasons.

    Of duplicates and near duplicates within a class, the largest image is kept (the first if several are as large).
    Duplicates in several classes are all left out, as at most one of their labels is right; near duplicates in several
    classes may show different things and are kept.
    """
    alike: dict[int, list[int]] = {}  # each image with its duplicates in its class; they share one list
    across = {}
    for first, second, _, exact in pairs:
        if entries[first].class_name == entries[second].class_name:
            together = alike.get(first, [first])
            if (others := alike.get(second, [second])) is not together:
                together += others
                alike |= dict.fromkeys(together, together)
        elif exact:
            for one, other in ((first, second), (second, first)):
                across[one] = f"the same image as {entries[other].id} of another class"
    kept = {i: min(group, key=lambda j: (-facts[j].height * facts[j].width, j)) for i, group in alike.items()}
    return {i: f"a duplicate of {entries[best].id}" for i, best in kept.items() if i != best} | across


def find_pairs(values: np.ndarray, groups: np.ndarray, max_distance: int) -> dict[tuple[int, int], int]:
    """Pairs of rows uint8 [N, W] that differ in at most `max_distance` bits, with their positions in `PLACES`.

    `groups` int [N, 2] are split and class. Each row is paired with the first one that it resembles in every place, as
    all pairs of a repeated row could be billions.
    """
    count = len(values)
    rows = np.concatenate([values, np.ascontiguousarray(groups, "<u4").view(np.uint8)], axis=1)
    _, firsts, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    distinct, of, which = values[firsts], groups[firsts], which.ravel()
    partners = np.full((len(PLACES), len(firsts)), count)  # beyond the end: none
    # Rows that differ in at most max_distance bits agree in at least one of this many blocks of up to 4 bytes.
    for columns in np.array_split(np.arange(values.shape[1]), max(max_distance + 1, values.shape[1] // 4)):
        for i, j in _equal_pairs(_keys(distinct[:, columns])):
            near = (np.bitwise_count(distinct[i] ^ distinct[j]).sum(1) <= max_distance) & (i != j)
            i, j = i[near], j[near]
            split, name = (of[i] != of[j]).T
            np.minimum.at(partners, (np.where(split, 2, name.astype(int)), i), firsts[j])
    found = partners[:, which]
    found[0] = np.minimum(found[0], np.where(firsts[which] < np.arange(count), firsts[which], count))
    places, images = np.nonzero(found < count)
    others = found[places, images]
    pairs = zip(np.minimum(images, others).tolist(), np.maximum(images, others).tolist(), strict=True)
    return dict(zip(pairs, places.tolist(), strict=True))


def _keys(block: np.ndarray) -> np.ndarray:
    padded = np.pad(block, ((0, 0), (0, 4 - block.shape[1])))
    return np.ascontiguousarray(padded).view(np.uint32)[:, 0]


def _equal_pairs(keys: np.ndarray, chunk: int = 2**20) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of all pairs of equal keys, also of each with itself, about `chunk` pairs at a time."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begin, end = np.searchsorted(ordered, keys, "left"), np.searchsorted(ordered, keys, "right")
    counts = end - begin
    cuts = np.searchsorted(np.cumsum(counts), np.arange(chunk, int(counts.sum()) + chunk, chunk)) + 1
    for rows in np.split(np.arange(len(keys)), np.unique(np.clip(cuts, 0, len(keys)))):
        times = counts[rows]
        if times.sum():
            offsets = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
            yield np.repeat(rows, times), order[np.repeat(begin[rows], times) + offsets]
