"""The collectives of a compiled program: what its devices send to one another, and how that grows with the batch."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dml_jax.train import hlo


class Collective(NamedTuple):
    """One array that a collective results in, on each device; a combined one counts as several.

    Attributes:
      kind: the operation of XLA.
      size: number of elements.
      bytes: of the array.
      source: the operation of the program as written.
    """

    kind: str
    size: int
    bytes: int
    source: str


def collectives(text: str) -> list[Collective]:
    """The collectives in the text of a compiled program; those in the body of a loop count once."""
    found = []
    for instruction in hlo.instructions(text):
        kind = instruction.operation.removesuffix("-done")  # of an asynchronous pair, it has the result alone
        if kind in hlo.COLLECTIVES:
            source = re.search(r'op_name="([^"]*)"', instruction.rest)
            for dtype, size in hlo.arrays(instruction.result):
                found.append(Collective(kind, size, int(hlo.SIZES[dtype] * size), source[1] if source else ""))
    return found


def growth(found: Iterable[Collective], rows: int, devices: int) -> dict[tuple[str, int], float]:
    """Bytes per power of the batch size, by kind and power, to extrapolate them with `total`.

    Args:
      found: of a program for a batch of `rows` images on each device.
      rows: a prime that divides no other dimension, so that arrays with the batch as a dimension can be told.
      devices: their number.
    """
    terms: Counter[tuple[str, int]] = Counter()
    for collective in found:
        power = 2 if collective.size % rows**2 == 0 else 1 if collective.size % rows == 0 else 0
        terms[collective.kind, power] += collective.bytes
    return {(kind, power): size / (rows * devices) ** power for (kind, power), size in terms.items()}


def total(terms: Mapping[tuple[str, int], float], batch: int) -> dict[str, float]:
    """Bytes by kind for another batch size, on any number of devices."""
    sizes: dict[str, float] = defaultdict(float)
    for (kind, power), size in terms.items():
        sizes[kind] += size * batch**power
    return sizes


def seconds(sizes: Mapping[str, float], devices: int, bandwidth: float) -> float:
    """The time of the collectives, one after the other, on a ring of devices.

    A device sends (n - 1) / n of the whole array to the next one, and twice as much for a sum over all (reduce-scatter
    and all-gather). The result of a reduce-scatter is 1 / n of the array. What every message takes beside the bytes per
    second is left out.

    Args:
      sizes: bytes of the results, by kind.
      devices: their number n.
      bandwidth: bytes/s that a device sends.
    """
    sent = sum({"all-reduce": 2, "reduce-scatter": devices}.get(kind, 1) * size for kind, size in sizes.items())
    return sent * (devices - 1) / devices / bandwidth
