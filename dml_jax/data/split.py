"""One split of a data set: what samplers, the input pipeline and the evaluation know of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dml_jax.errors import DataError


class Split(NamedTuple):
    """One split of a data set.

    Attributes:
      labels: int64 [N], class ids 0..C-1 of this split.
      ids: N names, one an image.
      read: (index, rng) -> uint8 [H, W, 3], RGB. `rng` is a `numpy.random.Generator` for data sets that draw their
        images; with None, as in every evaluation, the image is fixed.
      classes: C names, one a class.
      gallery: the images that this split's are searched for in (In-Shop); None where a split is searched in itself.
      content: SHA-256 of the prepared data set it is of, pixels included; empty where the images were not prepared.
    """

    labels: np.ndarray
    ids: Sequence[str]
    read: Callable[[int, np.random.Generator | None], np.ndarray]
    classes: Sequence[str]
    gallery: "Split | None" = None
    content: str = ""


def disjoint(splits: dict[str, Split]) -> dict[str, Split]:
    """Returns `splits` unchanged once training and test share no class name.

    Raises:
      DataError: naming a shared class.
    """
    shared = set(splits["train"].classes) & set(splits["test"].classes)
    if shared:
        raise DataError(f"{len(shared)} classes are in training and test, {min(shared)!r} among them: retrieval is "
                        "judged on unseen classes, so give every class one split only")  # fmt: skip
    return splits
