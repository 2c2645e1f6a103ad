"""What a query is looking for, beyond one class per row: other relevant rows, and rows that it must not find."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Judgements(NamedTuple):
    """Relevant and omitted gallery rows of each query; without any, rows of the query's class are relevant.

    Attributes:
      relevant: maps a query to the grades of all gallery rows, bool or float [G], positive if relevant.
      omitted: maps a query to the gallery rows to leave out, bool [G].
      groups: int [Q] and int [G]; a query leaves out the relevant rows of its own group.
    """

    relevant: Callable[[int], np.ndarray] | None = None
    omitted: Callable[[int], np.ndarray] | None = None
    groups: tuple[np.ndarray, np.ndarray] | None = None

    def of(self, query: int, members: Callable[[], np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        """Grades [G], and the rows to leave out, bool [G] or None; `members` gives the rows of the class, bool [G]."""
        grades = members() if self.relevant is None else self.relevant(query)
        omitted = None if self.omitted is None else self.omitted(query)
        if self.groups is not None:
            together = (grades > 0) & (self.groups[1] == self.groups[0][query])
            omitted = together if omitted is None else together | omitted
        return grades, omitted
