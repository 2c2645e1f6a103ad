"""Pictures that look alike across training and test, found by their fingerprints without comparing all pairs."""

from collections.abc import Iterator

import numpy as np

DISTANCE = 3  # bits by which the fingerprints of near-duplicates may differ, of 128
PLAIN = 8  # set bits under which a picture is too plain to be told from others
BLOCKS = DISTANCE + 1  # of two fingerprints that near, at least one of so many blocks is equal


def pairs(first: np.ndarray, second: np.ndarray) -> list[tuple[int, int]]:
    """Near-duplicates between two sets of pictures.

    Args:
      first: uint8 [N, 16], fingerprints.
      second: uint8 [M, 16].

    Returns:
      sorted (row of first, row of second) of all pairs at most `DISTANCE` bits apart, plain pictures left out.
    """
    rows = [np.flatnonzero(np.bitwise_count(prints).sum(1) >= PLAIN) for prints in (first, second)]
    ours, theirs = first[rows[0]], second[rows[1]]
    found: set[tuple[int, int]] = set()
    for block in range(BLOCKS):
        width = first.shape[1] // BLOCKS
        columns = slice(block * width, (block + 1) * width)
        for i, j in _equal(_keys(ours[:, columns]), _keys(theirs[:, columns])):
            apart = np.bitwise_count(ours[i] ^ theirs[j]).sum(1)
            near = apart <= DISTANCE
            found.update(zip(rows[0][i[near]].tolist(), rows[1][j[near]].tolist(), strict=True))
    return sorted(found)


def _keys(block: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(block).view(np.uint32)[:, 0]


def _equal(first: np.ndarray, second: np.ndarray, most: int = 2**20) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of positions with equal keys, about `most` at a time."""
    order = np.argsort(second, kind="stable")
    ordered = second[order]
    begin, end = np.searchsorted(ordered, first, "left"), np.searchsorted(ordered, first, "right")
    counts = end - begin
    cuts = np.searchsorted(np.cumsum(counts), np.arange(most, int(counts.sum()) + most, most)) + 1
    for rows in np.split(np.arange(len(first)), np.unique(np.clip(cuts, 0, len(first)))):
        times = counts[rows]
        if times.sum():
            offsets = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
            yield np.repeat(rows, times), order[np.repeat(begin[rows], times) + offsets]
