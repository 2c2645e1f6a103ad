"""TrivialAugment against torchvision: the pixels of every operation, and what is drawn."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dml_jax.config import Data
from dml_jax.data import transforms, trivial_augment

# Of torchvision 0.28: [level 9 and 30, direction, H, W, 3] of each operation on `image`, with Pillow 13.
REFERENCE = np.load(Path(__file__).with_name("trivial_augment_torchvision.npz"))
IMAGE = REFERENCE["image"]


@pytest.mark.parametrize("name", trivial_augment.OPERATIONS)
def test_operations_are_those_of_torchvision(name: str) -> None:
    for level, expected in zip((9, 30), REFERENCE[name], strict=True):
        for negative, image in zip((False, True), expected, strict=True):
            found = trivial_augment.apply(IMAGE, name, level, negative)
            np.testing.assert_allclose(found.astype(int), image.astype(int), atol=1)  # strengths differ by rounding
            assert np.mean(found == image) > 0.9


def test_draws_are_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int, bool]] = []

    def record(image: np.ndarray, *draw: object) -> np.ndarray:
        drawn.append(draw)  # type: ignore[arg-type]
        return image

    monkeypatch.setattr(trivial_augment, "apply", record)
    rng = np.random.default_rng(0)
    for _ in range(8680):
        trivial_augment.augment(IMAGE, rng)
    for values, count in zip(zip(*drawn, strict=True), (14, 31, 2), strict=True):
        shares = np.array(list(Counter(values).values())) * count / len(drawn)
        assert len(shares) == count
        assert shares.min() > 0.8
        assert shares.max() < 1.2


def test_crops_of_training_are_augmented() -> None:
    data = Data(crop="random", resize=14, image_size=10, trivial_augment=True)
    plain, augmented = transforms.training(Data(crop="random", resize=14, image_size=10)), transforms.training(data)
    changed = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        image = plain(IMAGE, rng)
        found = augmented(IMAGE, np.random.default_rng(seed))
        np.testing.assert_array_equal(found, trivial_augment.augment(image, rng))
        changed += int((found != image).any())
    assert changed > 25
