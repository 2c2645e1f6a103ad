"""A class-disjoint validation set: whole classes held out of training."""

import numpy as np

from dml_jax.data.split import Split
from dml_jax.errors import ConfigError


def subset(split: Split, classes: np.ndarray) -> Split:
    """The images of some classes, relabelled 0, 1, … in the order of `classes`, int [C']."""
    new_label = np.full(len(split.classes), -1)
    new_label[classes] = np.arange(len(classes))
    kept = np.flatnonzero(new_label[split.labels] >= 0)
    return Split(
        labels=new_label[split.labels[kept]].astype(np.int64),
        ids=[split.ids[int(i)] for i in kept],
        read=lambda index, rng: split.read(int(kept[index]), rng),
        classes=[split.classes[c] for c in classes],
        content=split.content,
        metadata={name: [values[int(i)] for i in kept] for name, values in split.metadata.items()},
    )


def hold_out(split: Split, share: float) -> tuple[Split, Split]:
    """Splits the classes of `split` into (training, validation).

    The choice of classes depends on the data set alone, so that runs with different seeds use the same validation set.

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
