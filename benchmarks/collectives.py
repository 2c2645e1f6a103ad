"""The collectives of a compiled program: what its devices send to one another."""

import re
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
# "%name = RESULT KIND(…)"; of an asynchronous pair, the second half has the result alone.
LINE = re.compile(rf"= (\([^()]*\)|\S+) ({'|'.join(KINDS)})(?:-done)?\((?:.*?op_name=\"([^\"]*)\")?")
ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")


class Collective(NamedTuple):
    """One array that a collective results in, on each device; a combined one counts as several.

    Attributes:
      kind: of KINDS.
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
    for result, kind, source in LINE.findall(text):
        for letters, bits, shape in ARRAY.findall(result):
            size = 1
            for length in filter(None, shape.split(",")):
                size *= int(length)
            width = 1 if letters == "pred" else int(bits) // 8
            found.append(Collective(kind, size, size * width, source))
    return found
