"""Limits on the size of resized images; see also tests/golden/test_transforms.py."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dml_jax.config import Data
from dml_jax.data import pipeline, samplers, transforms
from dml_jax.data.split import Split
from dml_jax.errors import DataError

CENTRE = Data(crop="centre", resize=256, image_size=224)


@pytest.mark.parametrize("shape", [(1, 6000, 3), (101, 1, 3)])
def test_narrow_images_are_rejected_before_they_are_enlarged(shape: Any) -> None:
    image = np.zeros(shape, np.uint8)
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"^{shape[1]}x{shape[0]} pixels: .* more than 100 times the other; crop it$"):
        transforms.evaluation(CENTRE)(image)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("part", [np.s_[3:33, 7:48], np.s_[:, 40:], np.s_[5:6, 2:3], np.s_[::-1, :9], np.s_[:, ::2]])
def test_crops_and_other_views_are_resized_as_their_copies(part: Any) -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    expected = Image.fromarray(image[part].copy()).resize((20, 30), Image.Resampling.BICUBIC)
    resized = transforms.resize(image[part], 30, 20, "bicubic")
    np.testing.assert_array_equal(resized, np.asarray(expected))


def test_the_limit_itself_is_accepted() -> None:
    for shape in ((100, 1, 3), (1, 100, 3)):
        assert transforms.evaluation(CENTRE)(np.zeros(shape, np.uint8)).shape == (224, 224, 3)


def test_the_pipeline_names_the_image() -> None:
    images = [np.zeros((8, 8, 3), np.uint8)] * 7 + [np.zeros((3, 999, 3), np.uint8)]
    labels = np.arange(8) % 2
    split = Split(labels, [f"{i}.jpg" for i in range(8)], lambda i, _: images[i], ["a", "b"])
    data = Data(batch_size=8, images_per_class=4, crop="random", resize=16, image_size=16)
    train = pipeline.training(split, samplers.build(data, labels, 0), data, seed=0, stop=1)
    with train, pytest.raises(DataError, match=r"7\.jpg: 999x3 pixels"):
        next(train)
