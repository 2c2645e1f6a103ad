"""Doubtful labels, compared with lists of neighbours in NumPy."""

from collections import Counter

import numpy as np

from dml_jax.analysis import data_report


def test_brute_force() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    rows = rng.normal(size=(6, 8))[labels] + 0.4 * rng.normal(size=(120, 8))
    rows[-3:] = rng.normal(size=(3, 8))  # strangers
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels[::20] = (labels[::20] + 1) % 6
    found = data_report.find_doubtful(rows.astype(np.float32), labels)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -2)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :10]
    expected = {i for i in range(120) if labels[i] not in labels[nearest[i]]}
    assert set(found.images.tolist()) == expected
    assert expected >= set(range(0, 120, 20))
    np.testing.assert_array_equal(found.neighbors, nearest[found.images])
    most = [Counter(labels[near].tolist()).most_common(1)[0] for near in found.neighbors]
    assert found.suggested.tolist() == [label if number >= 5 else -1 for label, number in most]
    assert sorted((number for _, number in most), reverse=True) == [number for _, number in most]


def test_few_images() -> None:
    rows = np.eye(2, dtype=np.float32)
    found = data_report.find_doubtful(rows, np.array([3, 5]))
    assert (found.images.tolist(), found.suggested.tolist()) == ([0, 1], [5, 3])
