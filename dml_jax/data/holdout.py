"""A class-disjoint validation set, whole classes held out of training, and samples of classes."""

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


def some_classes(split: Split, count: int, most: int) -> Split:
    """The images of `count` random classes of a split, at most `most` of them."""
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.unique(split.labels))[:count]
    rows = np.sort(rng.permutation(np.flatnonzero(np.isin(split.labels, classes)))[:most])
    return take(split, rows)


def take(split: Split, rows: np.ndarray) -> Split:
    """The images `rows` int [n] of a split, with their labels."""
    return split._replace(
        labels=split.labels[rows],
        ids=[split.ids[i] for i in rows],
        read=lambda index, rng: split.read(int(rows[index]), rng),
    )
