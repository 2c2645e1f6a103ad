"""Many strings as two arrays, which can be memory-mapped: ten million names as a list would take a gigabyte."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

BLOCK = 2**16  # names decoded at a time


class Names(Sequence[str]):
    """Strings that are decoded when they are asked for.

    Args:
      text: uint8 [L], all strings in UTF-8, one after the other.
      ends: int64 [N], where each string ends.

    Raises:
      ValueError: the arrays do not fit together.
    """

    def __init__(self, text: np.ndarray, ends: np.ndarray) -> None:
        if text.dtype != np.uint8 or ends.dtype != np.int64 or text.ndim != 1 or ends.ndim != 1:
            raise ValueError("names must be bytes and where they end")
        bounds = np.concatenate([[0], ends, [len(text)]])
        if (bounds[1:] < bounds[:-1]).any() or bounds[-2] != len(text):
            raise ValueError("names must end in order, the last one at the end of the text")
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        """The names of files need not be UTF-8; Python keeps such bytes as surrogates."""
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        text = np.frombuffer(b"".join(encoded), np.uint8)
        return cls(text, np.cumsum([len(name) for name in encoded], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        chosen = range(len(self))[index]
        if isinstance(chosen, int):
            return self[chosen : chosen + 1][0]
        if chosen.step != 1:
            return [self[i] for i in chosen]
        bounds = [
            int(self.ends[chosen.start - 1]) if chosen.start else 0,
            *self.ends[chosen.start : chosen.stop].tolist(),
        ]
        block = self.text[bounds[0] : bounds[-1]].tobytes()
        starts = (bound - bounds[0] for bound in bounds)
        first = next(starts)
        names = []
        for end in starts:
            names.append(block[first:end].decode("utf-8", "surrogateescape"))
            first = end
        return names

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]
