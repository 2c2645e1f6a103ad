"""Checking a data set before anything is made of it: every image is decoded, every problem found at once."""

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from dml_jax.data import decode
from dml_jax.data.prepare.sources import Entry, File
from dml_jax.errors import DataError

SMALLEST = 8  # pixels of a side
CONTRAST = 2  # levels by which two neighbours in a fingerprint must differ

S = TypeVar("S")
T = TypeVar("T")


class Facts(NamedTuple):
    """What is known of an image that decodes.

    Attributes:
      sha256: of the file's bytes.
      fingerprint: uint8 [16], alike for pictures that look alike.
    """

    sha256: bytes
    fingerprint: np.ndarray


def in_order(function: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Maps by threads, results in order, only a few of them ahead."""
    with ThreadPoolExecutor(threads) as pool:
        source = iter(items)
        waiting = deque(pool.submit(function, item) for item in islice(source, 8 * threads))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(source, 1))
            yield result


def examine(file: File) -> Facts | str:
    """Decodes an image file: what is known of it, or why it cannot be used."""
    try:
        data = file.read()
        pixels = decode.rgb(data)
    except DataError as error:
        return str(error)
    height, width, _ = pixels.shape
    if min(height, width) < SMALLEST:
        return f"only {width}x{height} pixels"
    return Facts(hashlib.sha256(data).digest(), fingerprint(pixels))


def fingerprint(pixels: np.ndarray) -> np.ndarray:
    """Which of neighbouring patches is brighter, in rows and in columns of a 9 x 9 picture: uint8 [16], 128 bits."""
    green = Image.fromarray(np.ascontiguousarray(pixels[:, :, 1]))
    small = np.asarray(green.resize((9, 9), Image.Resampling.BOX)).astype(np.int16)
    across = small[:8, 1:] > small[:8, :-1] + CONTRAST
    down = small[1:, :8] > small[:-1, :8] + CONTRAST
    return np.packbits(np.concatenate([across.ravel(), down.ravel()]))


def examine_all(
    entries: Sequence[Entry], threads: int, each: Callable[[int], None] = lambda done: None
) -> tuple[dict[int, Facts], dict[int, str]]:
    """Decodes all images: facts of the good ones and reasons of the bad ones, by position."""
    facts: dict[int, Facts] = {}
    reasons: dict[int, str] = {}
    for i, result in enumerate(in_order(lambda entry: examine(entry.file), entries, threads)):
        if isinstance(result, str):
            reasons[i] = result
        else:
            facts[i] = result
        each(i + 1)
    return facts, reasons


def misplaced(entries: Sequence[Entry], facts: Mapping[int, Facts]) -> dict[int, str]:
    """What is wrong with usable images as members of a data set, by position.

    An image name twice; the same file under two classes; names that are not UTF-8; a class with one image only; a query
    whose class the gallery lacks.
    """
    reasons: dict[int, str] = {}
    names: set[str] = set()
    owners: dict[bytes, set[str]] = {}
    for i in facts:
        owners.setdefault(facts[i].sha256, set()).add(entries[i].label)
    for i in facts:
        entry = entries[i]
        labels = owners[facts[i].sha256]
        if entry.id in names:
            reasons[i] = "is listed twice"
        elif len(labels) > 1:
            reasons[i] = f"the same file is in the classes {' and '.join(sorted(labels))}"
        elif not _utf8(entry.id):
            reasons[i] = "its name is not UTF-8"
        names.add(entry.id)
    return reasons | lonely(entries, set(facts) - set(reasons))


def lonely(entries: Sequence[Entry], usable: set[int]) -> dict[int, str]:
    """Images that have no other to be compared with, by position."""
    counts = Counter((entries[i].split, entries[i].label) for i in usable)
    gallery = any(split == "gallery" for split, _ in counts)
    reasons = {}
    for i in sorted(usable):
        split, label = entries[i].split, entries[i].label
        if split == "test" and gallery:
            if not counts["gallery", label]:
                reasons[i] = f"its class {label!r} is not in the gallery"
        elif split != "gallery" and counts[split, label] == 1:
            reasons[i] = f"the only image of its class {label!r}"
    return reasons


def miscounted(entries: Sequence[Entry], counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Splits that have not the images and classes they should have."""
    wrong = []
    for split, (images, classes) in counts.items():
        members = [entry.label for entry in entries if entry.split == split]
        got = (len(members), len(set(members)))
        if got != (images, classes):
            wrong.append(f"{split} has {got[0]} images of {got[1]} classes instead of {images} of {classes}")
    return wrong


def _utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
