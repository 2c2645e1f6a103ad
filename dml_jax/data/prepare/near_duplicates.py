"""Near-duplicates between training and test images, found by their difference hashes without comparing all pairs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dml_jax.console import Console
from dml_jax.data.prepare.sources import SPLITS, Entry
from dml_jax.files import write_csv

TABLE = "near_duplicates.csv"
MAX_DISTANCE = 3  # bits by which the hashes of near-duplicates may differ, of 128
MIN_BITS = 8  # images with fewer set bits have too little structure to be compared
BLOCKS = MAX_DISTANCE + 1  # hashes that differ in at most MAX_DISTANCE bits agree in at least one of this many blocks


def between_splits(entries: Sequence[Entry], hashes: Sequence[np.ndarray]) -> list[tuple[Entry, Entry]]:
    """Pairs of a training image and a similar test or gallery image, from difference hashes uint8 [16]."""
    indices = {split: [i for i, entry in enumerate(entries) if entry.split == split] for split in SPLITS}
    train, test = indices["train"], indices["test"] + indices["gallery"]
    stacked = np.stack(hashes)
    return [(entries[train[i]], entries[test[j]]) for i, j in find_pairs(stacked[train], stacked[test])]


def write(directory: Path, pairs: Sequence[tuple[Entry, Entry]], console: Console) -> None:
    """Writes the names of the pairs to a table and prints some of them."""
    with (directory / TABLE).open("w", newline="", encoding="utf-8") as file:
        write_csv(file, [("train", "test"), *((a.id, b.id) for a, b in pairs)])
    if pairs:
        console.print(
            f"near-duplicates between training and test: {len(pairs)} pairs, each image with the first it resembles, "
            f"see {TABLE}; examples:"
        )
        for a, b in pairs[:3]:
            console.print(f"  {a.id} and {b.id}")


def find_pairs(first: np.ndarray, second: np.ndarray) -> list[tuple[int, int]]:
    """Near-duplicates between two sets of images, from difference hashes uint8 [N, 16] and [M, 16].

    Returns:
      Sorted pairs (index into first, index into second) of hashes that differ in at most `MAX_DISTANCE` bits: of each
      image with the first one of the other set that it resembles, as all pairs of a repeated image could be billions.
      Hashes with fewer than `MIN_BITS` set bits are ignored.
    """
    hashes1, firsts1, images1, groups1 = _distinct(first)
    hashes2, firsts2, images2, groups2 = _distinct(second)
    partners1, partners2 = np.full(len(hashes1), len(second)), np.full(len(hashes2), len(first))  # beyond the end: none
    width = first.shape[1] // BLOCKS
    for block in range(BLOCKS):
        columns = slice(block * width, (block + 1) * width)
        for i, j in _equal_pairs(_keys(hashes1[:, columns]), _keys(hashes2[:, columns])):
            near = np.bitwise_count(hashes1[i] ^ hashes2[j]).sum(1) <= MAX_DISTANCE
            i, j = i[near], j[near]
            np.minimum.at(partners1, i, firsts2[j])
            np.minimum.at(partners2, j, firsts1[i])
    forward = zip(images1.tolist(), partners1[groups1].tolist(), strict=True)
    backward = zip(partners2[groups2].tolist(), images2.tolist(), strict=True)
    return sorted({(i, j) for i, j in (*forward, *backward) if i < len(first) and j < len(second)})


def _distinct(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct hashes with enough set bits, the first image that has each, all images that have one, and which."""
    images = np.flatnonzero(np.bitwise_count(hashes).sum(1) >= MIN_BITS)
    distinct, firsts, groups = np.unique(hashes[images], axis=0, return_index=True, return_inverse=True)
    return distinct, images[firsts], images, groups.ravel()


def _keys(block: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(block).view(np.uint32)[:, 0]


def _equal_pairs(first: np.ndarray, second: np.ndarray, chunk: int = 2**20) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Indices of all pairs of equal keys, about `chunk` pairs at a time."""
    order = np.argsort(second, kind="stable")
    ordered = second[order]
    begin, end = np.searchsorted(ordered, first, "left"), np.searchsorted(ordered, first, "right")
    counts = end - begin
    cuts = np.searchsorted(np.cumsum(counts), np.arange(chunk, int(counts.sum()) + chunk, chunk)) + 1
    for rows in np.split(np.arange(len(first)), np.unique(np.clip(cuts, 0, len(first)))):
        times = counts[rows]
        if times.sum():
            offsets = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
            yield np.repeat(rows, times), order[np.repeat(begin[rows], times) + offsets]
