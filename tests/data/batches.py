"""Small images in files, and the batches that the pipeline makes of them."""

from pathlib import Path

import numpy as np

from dml_jax.config import Data
from dml_jax.data import pipeline, samplers
from dml_jax.data.prepared_data import file_reader
from dml_jax.data.split import Split
from tests.data import pictures

Batches = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
CROPPED = {"crop": "random_resized", "image_size": 12, "resize": 16}


def small_split(folder: Path) -> Split:
    """37 images of 5 classes and of different sizes."""
    files = [str(pictures.write(folder / f"{i}.jpg", i, 20 + i, 40 - i // 2)) for i in range(37)]
    labels = np.arange(37, dtype=np.int64) % 5
    return Split(labels, [f"{i}.jpg" for i in range(37)], file_reader(files, Data()), [*"01234"])


def options(**changes: object) -> Data:
    return Data(**{"batch_size": 8, "images_per_class": 2, "threads": 1, **CROPPED, **changes})  # type: ignore[arg-type]


def read_batches(split: Split, data: Data, **overrides: int) -> Batches:
    arguments = {"seed": 5, "views": 2, "start": 0, "stop": 9} | overrides
    with pipeline.training(split, samplers.build(data, split.labels, 5), data, **arguments) as reader:
        return list(reader)


def assert_same(first: Batches, second: Batches) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)
