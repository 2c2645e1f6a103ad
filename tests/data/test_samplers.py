"""Samplers: guarantees of the balanced sampler, purity of all samplers, and error messages."""

import numpy as np
import pytest

from dml_jax.config import Data
from dml_jax.data import samplers
from dml_jax.errors import ConfigError, DataError

SIZES = [5, 6, 9, 4, 3, 11, 2, 1, 8]
LABELS = np.repeat(np.arange(len(SIZES)), SIZES)
NAMES = sorted(samplers.SAMPLERS)


def build(sampler: str, batch_size: int, images: int, seed: int = 3, labels: np.ndarray = LABELS) -> samplers.Sampler:
    data = Data(sampler=sampler, batch_size=batch_size, images_per_class=images)  # type: ignore[arg-type]
    return samplers.build(data, labels, seed)


@pytest.mark.parametrize(("batch_size", "images"), [(12, 4), (20, 4), (36, 4), (15, 5), (8, 1), (9, 3), (12, 6)])
def test_balanced_counts_are_even_at_every_step(batch_size: int, images: int) -> None:
    sampler = build("balanced", batch_size, images)
    class_indices = samplers.indices_by_class(LABELS)
    classes, seen = np.zeros(len(SIZES), int), np.zeros(len(LABELS), int)
    for step in range(300):
        batch = sampler.batch(step)
        groups = LABELS[batch].reshape(-1, images)
        assert (groups == groups[:, :1]).all()
        assert len(set(groups[:, 0])) == batch_size // images
        np.add.at(classes, groups[:, 0], 1)
        np.add.at(seen, batch, 1)
        assert np.ptp(classes) <= 1
        for c, size in enumerate(SIZES):
            assert np.ptp(seen[class_indices[c]]) <= 1
            drawn = batch[LABELS[batch] == c]
            assert len(drawn) == 0 or len(set(drawn)) == min(size, images)


@pytest.mark.parametrize("name", NAMES)
def test_batch_is_a_pure_function_of_seed_and_step(name: str) -> None:
    forward, backward, other = (build(name, 12, 3, seed) for seed in (3, 3, 4))
    batches = [forward.batch(step) for step in range(40)]
    again = [backward.batch(step) for step in reversed(range(40))][::-1]
    np.testing.assert_array_equal(batches, again)
    assert not np.array_equal(batches, [other.batch(step) for step in range(40)])
    assert np.stack(batches).shape == (40, 12)
    assert np.min(batches) >= 0
    assert np.max(batches) < len(LABELS)


@pytest.mark.parametrize("name", NAMES)
def test_epoch_and_first_step_are_inverse(name: str) -> None:
    sampler = build(name, 12, 3)
    starts = [sampler.first_step(e) for e in range(6)]
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    for step in range(starts[5]):
        e = sampler.epoch(step)
        assert sampler.first_step(e) <= step < sampler.first_step(e + 1)


def test_shuffled_draws_no_image_twice_in_an_epoch() -> None:
    sampler = build("shuffled", 12, 4)
    assert sampler.first_step(1) == len(LABELS) // 12
    for epoch in range(3):
        seen = np.concatenate(
            [sampler.batch(s) for s in range(sampler.first_step(epoch), sampler.first_step(epoch + 1))]
        )
        assert len(set(seen)) == len(seen) == sampler.first_step(1) * 12


def test_one_class() -> None:
    with pytest.raises(DataError, match="one class of 20 images"):
        build("balanced", 4, 2, labels=np.zeros(20, int))


@pytest.mark.parametrize(
    ("name", "size", "images", "message"),
    [
        ("balanced", 40, 4, r"^data\.batch_size=40: .* 10 classes.* has 9; use at most data\.batch_size=36$"),
        ("shuffled", 50, 4, r"^data\.batch_size=50: .* only 49 images; use a smaller data\.batch_size$"),
        ("balanced", 10, 4, r"^data\.images_per_class=4: must divide data\.batch_size=10"),
    ],
)
def test_impossible_batches(name: str, size: int, images: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, size, images)


def check_small_classes(name: str) -> None:
    """Class 7 has one image, which fills its K = 3 places in a batch."""
    sampler = build(name, 12, 3)
    batches = np.concatenate([sampler.batch(s) for s in range(30)])
    assert np.sum(batches == np.flatnonzero(LABELS == 7)[0]) >= 3


def test_small_classes_repeat_images() -> None:
    for name in ("balanced", "ms"):
        check_small_classes(name)
