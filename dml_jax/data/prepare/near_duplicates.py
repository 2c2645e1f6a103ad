"""Near-duplicates between training and test images, found by their difference hashes without comparing all pairs."""

from collections.abc import Iterator

import numpy as np

MAX_DISTANCE = 3  # bits by which the hashes of near-duplicates may differ, of 128
MIN_BITS = 8  # images with fewer set bits have too little structure to be compared
BLOCKS = MAX_DISTANCE + 1  # hashes that differ in at most MAX_DISTANCE bits agree in at least one of this many blocks


def find_pairs(first: np.ndarray, second: np.ndarray) -> list[tuple[int, int]]:
    """Near-duplicates between two sets of images.

    Args:
      first: uint8 [N, 16], difference hashes.
      second: uint8 [M, 16].

    Returns:
      Sorted pairs (index into first, index into second) of hashes that differ in at most `MAX_DISTANCE` bits. Hashes
      with fewer than `MIN_BITS` set bits are ignored.
    """
    kept = [np.flatnonzero(np.bitwise_count(hashes).sum(1) >= MIN_BITS) for hashes in (first, second)]
    hashes1, hashes2 = first[kept[0]], second[kept[1]]
    found: set[tuple[int, int]] = set()
    width = first.shape[1] // BLOCKS
    for block in range(BLOCKS):
        columns = slice(block * width, (block + 1) * width)
        for i, j in _equal_pairs(_keys(hashes1[:, columns]), _keys(hashes2[:, columns])):
            near = np.bitwise_count(hashes1[i] ^ hashes2[j]).sum(1) <= MAX_DISTANCE
            found.update(zip(kept[0][i[near]].tolist(), kept[1][j[near]].tolist(), strict=True))
    return sorted(found)


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
