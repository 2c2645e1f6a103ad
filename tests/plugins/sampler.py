"""A sampler: every batch has one large class, and one image of each of many others."""

import numpy as np

from dml_jax.data import samplers


def one_against_many(labels, batch_size, images_per_class, seed):
    """`images_per_class` images of a class that changes with the step, the others from the whole
    training split."""

    def batch(step):
        random = np.random.default_rng((seed, step))
        chosen = np.flatnonzero(labels == random.integers(labels.max() + 1))
        first = random.choice(chosen, images_per_class)
        return np.concatenate([first, random.choice(len(labels), batch_size - images_per_class)])

    return samplers.from_batches(batch, steps=max(1, len(labels) // batch_size))
