"""Decisions against loops; error rates of the calibrated thresholds on classes they were not measured on."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import geometry, open_set


def clusters(classes: int, images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 around random centres, and their labels; label 7 c for class c."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, 16))
    labels = np.repeat(np.arange(classes), images)
    rows = centres[labels] / np.linalg.norm(centres[labels], axis=1, keepdims=True)
    rows = rows + 0.2 * rng.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), 7 * labels


@pytest.mark.parametrize("ignoring", [False, True])
def test_the_nearest_image_against_loops(ignoring, monkeypatch) -> None:
    rows, labels = clusters(12, 5, seed=0)
    rows = rows + 0.3 * np.random.default_rng(1).standard_normal(rows.shape).astype(np.float32)  # many wrong decisions
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    order = np.random.default_rng(2).permutation(60)
    query, enrolled = order[:20], order[20:]
    monkeypatch.setattr(open_set, "BLOCK_ELEMENTS", 7 * 40)  # blocks of seven queries
    found = open_set.decide(rows[query], rows[enrolled], labels[enrolled], without=labels[query] if ignoring else None)
    for i, row in enumerate(query):
        cosines = {
            place: float(rows[row].astype(np.float64) @ rows[other])
            for place, other in enumerate(enrolled)
            if not ignoring or labels[other] != labels[row]
        }
        nearest = max(cosines, key=lambda place: cosines[place])
        assert (found.labels[i], found.nearest[i]) == (labels[enrolled[nearest]], nearest)
        assert found.similarities[i] == pytest.approx(cosines[nearest], abs=1e-6)


def held_out_errors(threshold: float, sizes: list[int]) -> tuple[float, float, int]:
    """(false-accept rate, false-reject rate, strangers) over many indexes of new classes."""
    rng = np.random.default_rng(4)
    rows = clusters(600, 12, seed=4)[0].reshape(600, 12, 16)
    accepted, rejected = [], []
    for _ in range(40):
        shuffled = rows[rng.permutation(600)]
        enrolled = np.concatenate([shuffled[i, :size] for i, size in enumerate(sizes)])
        strangers = rng.permutation(shuffled[len(sizes) :].reshape(-1, 16))[:100]
        known = np.concatenate([shuffled[i, size:] for i, size in enumerate(sizes)])
        accepted.append((strangers @ enrolled.T).max(axis=1) >= threshold)
        rejected.append((known @ enrolled.T).max(axis=1) < threshold)
    return np.concatenate(accepted).mean(), np.concatenate(rejected).mean(), 4000


@pytest.mark.parametrize("sizes", [[1], [3] * 10, [10] * 10, [1, 2, 9] * 30], ids=["1x1", "10x3", "10x10", "mixed"])
def test_the_rate_is_met_on_other_classes(sizes) -> None:
    rows, labels = clusters(400, 12, seed=3)
    calibration = open_set.calibrate(rows, labels, np.array(sizes))
    assert calibration.classes == 400
    expected = open_set.expect(calibration, 0.05)
    accepted, rejected, strangers = held_out_errors(expected.threshold, sizes)
    error = (0.05 * 0.95 * (1 / strangers + 1 / calibration.images)) ** 0.5
    assert accepted == pytest.approx(0.05, abs=4 * error)
    assert expected.false_accepts == pytest.approx(0.05, abs=2e-4)
    assert rejected == pytest.approx(expected.false_rejects, abs=0.05)
    assert expected.growth == 1


def test_a_threshold_for_pairs_would_accept_most_strangers() -> None:
    rows, labels = clusters(100, 12, seed=3)
    pairs = geometry.error_rates(rows, labels)
    accepted, _, _ = held_out_errors(pairs.threshold, [10] * 50)
    assert accepted > 5 * pairs.equal_error_rate


@pytest.mark.parametrize(("sizes", "growth"), [([3] * 200, 5.0), ([11] * 20, 2.2)])
def test_larger_than_the_split(sizes, growth) -> None:
    """41 classes of 6 images simulate 200 classes, or 11 images per class: the rate is an upper bound."""
    rows, labels = clusters(41, 6, seed=3)
    calibration = open_set.calibrate(rows, labels, np.array(sizes))
    expected = open_set.expect(calibration, 0.1)
    accepted, _, strangers = held_out_errors(expected.threshold, sizes)
    assert expected.growth == pytest.approx(growth)
    assert accepted <= 0.1 + 4 * (0.1 * 0.9 * (1 / strangers + 1 / calibration.images)) ** 0.5
    assert 0.09 < expected.false_accepts <= 0.1


def test_queries_and_gallery_against_enumeration() -> None:
    """One gallery image per class and an index as large: each query sees all classes but one."""
    rows, labels = clusters(8, 5, seed=5)
    in_gallery = np.arange(40) % 5 == 0
    gallery = (rows[in_gallery], labels[in_gallery])
    queries, own = rows[~in_gallery], labels[~in_gallery]
    found = open_set.calibrate(queries, own, np.ones(7, int), gallery)
    cosines = queries @ gallery[0].T
    nearest = np.where(own[:, None] == gallery[1], -1, cosines).max(axis=1)
    np.testing.assert_allclose(found.strangers, np.sort(np.tile(nearest, open_set.TRIALS)), atol=1e-6)
    to_own, to_any = cosines[own[:, None] == gallery[1]], cosines.max(axis=1)
    assert np.all(np.sort(found.known) >= np.sort(np.tile(to_own, open_set.TRIALS)) - 1e-6)
    assert np.all(np.sort(found.known) <= np.sort(np.tile(to_any, open_set.TRIALS)) + 1e-6)
    assert (found.images, found.classes, found.growth) == (32, 8, 1)


def test_separated_classes() -> None:
    rows, labels = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0), np.repeat(np.arange(4), 3)
    one, two = (open_set.calibrate(rows, labels, np.array([2, 2])) for _ in range(2))
    expected = open_set.expect(one, 0.01)
    assert 0 < expected.threshold < 1e-30
    assert (expected.false_accepts, expected.false_rejects) == (0, 0)
    for first, second in zip((*one[:-1], *one.background), (*two[:-1], *two.background), strict=True):
        np.testing.assert_array_equal(first, second)


def test_errors() -> None:
    rows, labels = clusters(4, 3, seed=0)
    for few in (labels * 0, np.arange(12)):
        with pytest.raises(DataError, match="needs several unseen classes with two images or more"):
            open_set.calibrate(rows, few, np.array([2]))
    for rate in (0, 1, -0.5, float("nan")):
        with pytest.raises(DataError, match=r"false_accept_rate=.*must be above 0 and below 1"):
            open_set.check("nearest", rate)
