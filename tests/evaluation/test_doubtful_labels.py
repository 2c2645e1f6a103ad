"""Doubts by loops in float64, and probabilities on planted errors."""

import numpy as np

from dml_jax.evaluation import doubtful_labels


def test_doubts_by_loops() -> None:
    """Classes of four, two and one image; a class without another group; images of no class."""
    rows = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    labels = np.array([0, 2, 0, -1, 0, 2, 4, 0, -1])
    groups = np.array([7, 7, 7, 7, 8, 7, 7, 9, 9])
    for given in (None, groups):
        found = doubtful_labels.find(rows, labels, given)
        parts = np.arange(9) if given is None else given
        for i, label in enumerate(labels):
            own = rows[(labels == label) & (parts != parts[i])].astype(float)
            gaps = {
                c: np.linalg.norm(rows[i] - rows[labels == c].astype(float).mean(axis=0)) for c in {0, 2, 4} - {label}
            }
            expected = -np.inf
            if label >= 0 and len(own):
                expected = np.linalg.norm(rows[i] - own.mean(axis=0)) - min(gaps.values())
            np.testing.assert_allclose(found.doubt[i], expected, rtol=1e-5)
            assert found.proposed[i] == (min(gaps, key=gaps.__getitem__) if label >= 0 else -1)
    assert doubtful_labels.calibrate(rows, labels, found.doubt) is None
    alone = doubtful_labels.find(rows, np.zeros(9, np.int64))
    assert np.isneginf(alone.doubt).all()
    assert (alone.proposed == -1).all()


def test_spread_rows() -> None:
    """Along their principal axes, the variances are the roots of those before, up to the floor."""
    scales = np.array([8.0, 4, 2])
    rows = np.random.default_rng(0).normal(size=(5000, 3)) * scales + 3
    made = doubtful_labels.spread(rows.astype(np.float32))
    floor = doubtful_labels.FLOOR * (scales**2).mean()
    expected = (rows - rows.mean(axis=0)) / (scales**2 + floor) ** 0.25
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    some = slice(300)
    np.testing.assert_allclose(np.abs(made[some] @ made[some].T), np.abs(expected[some] @ expected[some].T), atol=0.05)


def test_probabilities_of_planted_errors() -> None:
    """They are those of wrong labels, or a little lower."""
    rng = np.random.default_rng(0)
    right = np.repeat(np.arange(20), 40)
    rows = rng.normal(size=(20, 16))[right] + rng.normal(size=(800, 16))
    labels = right.copy()
    moved = rng.permutation(800)[:60]
    labels[moved] = (right[moved] + rng.integers(1, 20, 60)) % 20
    spread = doubtful_labels.spread(rows.astype(np.float32))
    found = doubtful_labels.find(spread, labels)
    probability = doubtful_labels.calibrate(spread, labels, found.doubt)
    assert probability is not None
    chances = probability(found.doubt)
    likely = chances > 0.5
    assert 45 < chances.sum() < 80
    assert -0.05 < (labels != right)[likely].mean() - chances[likely].mean() < 0.2  # cautious
    assert (found.proposed[moved] == right[moved]).mean() > 0.9


def test_probabilities_of_classes_of_two() -> None:
    """A planted label may be alone in its class, and has no doubt."""
    rows, labels = np.random.default_rng(0).normal(size=(4000, 4)), np.arange(4000) // 2
    doubt = doubtful_labels.find(rows.astype(np.float32), labels).doubt
    probability = doubtful_labels.calibrate(rows.astype(np.float32), labels, doubt)
    assert probability is not None
    assert np.isfinite(probability(np.append(doubt, -np.inf))).all()
