"""Samplers: guarantees of the balanced sampler, purity of all samplers, and error messages."""

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

from dml_jax.config.sections import WITHOUT_CLASSES
from dml_jax.data import samplers
from dml_jax.errors import ConfigError, DataError
from tests.data.sampled import LABELS, RELATION, SIZES, build, check_small_classes

NAMES = sorted(samplers.SAMPLERS)


@pytest.mark.parametrize(("batch_size", "images"), [(12, 4), (20, 4), (36, 4), (15, 5), (8, 1), (9, 3), (12, 6)])
def test_balanced_counts_are_even_at_every_step(batch_size: int, images: int) -> None:
    sampler = build("balanced", batch_size, images)
    class_indices = samplers.base.indices_by_class(LABELS)
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
def test_a_pickled_sampler_draws_the_same_batches(name: str) -> None:
    sampler = build(name, 12, 3)
    copied = pickle.loads(pickle.dumps(sampler))
    for step in (0, 7, 31):
        np.testing.assert_array_equal(copied.batch(step), sampler.batch(step))
        assert copied.epoch(step) == sampler.epoch(step)
    assert copied.first_step(2) == sampler.first_step(2)


def test_own_samplers_can_be_pickled_if_their_functions_can() -> None:
    copied = pickle.loads(pickle.dumps(samplers.from_batches(np.arange, 3)))
    assert (copied.batch(4).tolist(), copied.epoch(4)) == ([0, 1, 2, 3], 1)
    copied = pickle.loads(pickle.dumps(samplers.from_epochs(np.zeros, 4, 3)))
    assert copied.first_step(2) == 6


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


@pytest.mark.parametrize("name", NAMES)
def test_any_labels_are_classes(name: str) -> None:
    """With gaps, of 64 bits, negative, or text: the same batches as the numbers of the classes."""
    given: Any = {"relation": RELATION} if name == "related" else {}
    make = partial(samplers.SAMPLERS[name], **given)
    options = {"batch_size": 12} | ({} if name in WITHOUT_CLASSES else {"images_per_class": 3})
    names = np.array(["ash", "beech", "elm", "fir", "lime", "oak", "pine", "plum", "yew"])
    expected = [make(LABELS, **options).batch(step) for step in range(5)]
    for labels in (LABELS * 2 + 1, LABELS.astype(np.uint64) + 2**63, LABELS - 5, names[LABELS], list(names[LABELS])):
        np.testing.assert_array_equal([make(labels, **options).batch(step) for step in range(5)], expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_rules_of_the_configuration_hold_in_direct_calls(name: str) -> None:
    """Of every sampler; their sentences are in `tests/refusals/samplers.txt`."""
    given: Any = {"relation": RELATION} if name == "related" else {}
    grouped = {} if name in WITHOUT_CLASSES else {"images_per_class": 3}
    for wrong in ({"batch_size": 12.0}, {"batch_size": 0}, {"batch_size": 12, "seed": -1}):
        with pytest.raises(ConfigError, match=rf"^(data\.)?{[*wrong][-1]}="):
            samplers.SAMPLERS[name](LABELS, **grouped | wrong, **given)
    for images in (0, 5, 12) if grouped else ():
        with pytest.raises(ConfigError, match=r"^data\.(images_per_class|batch_size)="):
            samplers.SAMPLERS[name](LABELS, batch_size=12, images_per_class=images, **given)


@pytest.mark.parametrize("labels", [LABELS.astype(float), LABELS[:, None], np.zeros(0, int), np.array([object(), "a"])])
def test_labels_that_are_no_classes(labels: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"^labels: hold .*; give one class per image, an integer or text$"):
        samplers.balanced(labels, batch_size=4, images_per_class=2)


@pytest.mark.parametrize("number", [-1, 0.5, None])
@pytest.mark.parametrize("name", NAMES)
def test_steps_and_epochs_before_the_first(name: str, number: Any) -> None:
    sampler = build(name, 12, 3)
    for function in sampler:
        with pytest.raises(DataError, match=f"sampler: {number} is no step or epoch; steps and"):
            function(number)


def test_small_classes_repeat_images() -> None:
    for name in ("balanced", "distinct_chunks"):
        check_small_classes(name)


def test_every_second_class_is_related_to_the_one_before() -> None:
    """In proportion to the weights; at random, if no class that is left is related."""
    relation = np.zeros((9, 9))
    relation[np.arange(9), (np.arange(9) + 1) % 9] = 3
    relation[np.arange(9), (np.arange(9) + 4) % 9] = 1
    relation[0] = np.nan
    sampler = samplers.related(LABELS, batch_size=8, images_per_class=2, relation=relation)
    counts, first = np.zeros((9, 9)), np.zeros(9)
    for step in range(2000):
        classes = LABELS[sampler.batch(step)].reshape(4, 2)
        assert (classes[:, 0] == classes[:, 1]).all()
        assert len(set(classes[:, 0])) == 4
        np.add.at(first, classes[::2, 0], 1)
        np.add.at(counts, (classes[0, 0], classes[1, 0]), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    for c in range(1, 9):
        assert shares[c, (c + 1) % 9] == pytest.approx(0.75, abs=0.1)
        assert shares[c, (c + 4) % 9] == pytest.approx(0.25, abs=0.1)
    assert np.all(shares[0, 1:] > 0.05)
    assert first.min() > 0.7 * first.mean()
