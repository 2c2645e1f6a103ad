"""A data set: coloured squares, one colour per class."""

import numpy as np

from dml_jax.data.split import Split


def load(data):
    def split(first, classes, images):
        labels = np.repeat(np.arange(classes), images)

        def read(index, rng):
            colour = np.random.default_rng(first + labels[index]).integers(0, 256, 3)
            noise = np.random.default_rng((first, index)).normal(0, 40, (16, 16, 3))
            return np.clip(colour + noise, 0, 255).astype(np.uint8)

        names = [f"colour {first + c}" for c in range(classes)]
        return Split(labels, [f"{first}-{i}" for i in range(len(labels))], read, names)

    return {"train": split(0, 8, 16), "test": split(100, 8, 12)}
