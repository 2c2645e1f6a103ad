"""A class-disjoint validation set: whole classes held out of training."""

import numpy as np

from dml_jax.data.split import Split
from dml_jax.errors import ConfigError


def subset(split: Split, classes: np.ndarray) -> Split:
    """The images of some classes, which are numbered anew in the order given."""
    number = np.full(len(split.classes), -1)
    number[classes] = np.arange(len(classes))
    kept = np.flatnonzero(number[split.labels] >= 0)
    return Split(
        labels=number[split.labels[kept]].astype(np.int64),
        ids=[split.ids[int(i)] for i in kept],
        read=lambda index, rng: split.read(int(kept[index]), rng),
        classes=[split.classes[c] for c in classes],
        content=split.content,
    )


def hold_out(split: Split, share: float) -> tuple[Split, Split]:
    """Splits the classes into (training, validation).

    Which classes are held out depends on the data set alone, so that runs of different seeds choose on the same ones.

    Raises:
      ConfigError: fewer than two classes on one side.
    """
    total = len(split.classes)
    held = round(share * total)
    if held < 2 or total - held < 2:
        raise ConfigError(
            f"data.validation_share={share}: leaves {total - held} of {total} classes for training and {held} for "
            "validation; each needs at least 2"
        )
    order = np.random.default_rng(total).permutation(total)
    return subset(split, np.sort(order[held:])), subset(split, np.sort(order[:held]))
