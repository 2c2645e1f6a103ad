"""A data set: drawings whose classes are combinations of tags, "red round large"; a third of the
combinations is tested."""

import itertools

import numpy as np

from dml_jax.data.split import Split

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 230), "grey": (140,) * 3}
SHAPES = {"round": 2.0, "square": 16.0, "diamond": 1.0}  # exponents of the norm
SIZES = {"small": 3.0, "large": 6.0}  # pixels
NAMES = [" ".join(tags) for tags in itertools.product(COLOURS, SHAPES, SIZES)]


def draw(name, rng):
    """A drawing of the class at a random place, with noise: uint8 [16, 16, 3]."""
    colour, shape, size = name.split()
    offset = np.abs(np.indices((16, 16)) + 0.5 - 8 - rng.uniform(-2, 2, (2, 1, 1)))
    inside = (offset ** SHAPES[shape]).sum(0) < SIZES[size] ** SHAPES[shape]
    image = np.where(inside[..., None], COLOURS[colour], 255) + rng.normal(0, 40, (16, 16, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def load(data):
    def split(seed, names, images):
        labels = np.repeat(np.arange(len(names)), images)

        def read(index, rng):
            return draw(names[labels[index]], np.random.default_rng((seed, index)))

        return Split(labels, [f"{seed}-{i}" for i in range(len(labels))], read, names)

    return {"train": split(0, NAMES[0::3] + NAMES[1::3], 20), "test": split(1, NAMES[2::3], 20)}
