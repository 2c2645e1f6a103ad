"""A metric: how far down the ranking the last relevant image lies."""

import numpy as np


def last_hit(hits):
    """The rank of the last relevant row, divided by the number of rows; `hits` is bool [G], nearest
    first."""
    return (1 + np.flatnonzero(hits)[-1]) / len(hits)
