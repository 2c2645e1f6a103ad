"""The collectives of a compiled program: what its devices send to one another."""

import re
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
