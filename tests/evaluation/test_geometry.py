"""Density, spectral decay, effective rank, uniformity and alignment against their definitions."""

import numpy as np
import pytest

from dml_jax.evaluation import check_inputs, geometry, metrics


def rows(seed, count=90, width=10):
    return np.random.default_rng(seed).normal(size=(count, width)) + 0.3


def units(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_density_is_the_ratio_of_mean_distances():
    points, labels = rows(0), np.random.default_rng(1).integers(0, 12, 90)
    labels[:2] = 50, 51  # singleton classes
    intra, centers = [], []
    for c in np.unique(labels):
        members = units(points[labels == c])
        centers.append(units(points[labels == c].mean(0)))
        if len(members) > 1:
            distances = 1 - members @ members.T
            intra.append(distances[~np.eye(len(members), dtype=bool)].mean())
    distances = 1 - np.array(centers) @ np.array(centers).T
    inter = distances[~np.eye(len(centers), dtype=bool)].mean()
    assert metrics.density(points, labels) == pytest.approx(np.mean(intra) / inter, rel=1e-12)


def test_density_needs_two_classes_and_a_pair():
    right, up, diagonal = [1.0, 0], [0, 2.0], [0.5**0.5, 0.5**0.5]
    between = 1 - np.cos(3 * np.pi / 8)  # the centre of the first class is at 22.5 degrees
    assert metrics.density(np.array([right, diagonal, up]), np.array([0, 0, 1])) == pytest.approx(
        (1 - np.sqrt(0.5)) / between, rel=1e-12
    )
    assert np.isnan(metrics.density(rows(1, 5), np.arange(5)))
    assert np.isnan(metrics.density(rows(1, 5), np.zeros(5, int)))


@pytest.mark.parametrize("shape", [(90, 10), (6, 10)])
def test_spectrum(shape, monkeypatch):
    points = rows(2, *shape)
    expected = np.linalg.svd(points, compute_uv=False)
    np.testing.assert_allclose(metrics.singular_values(points), expected, rtol=1e-12)
    monkeypatch.setattr(check_inputs, "BLOCK_ELEMENTS", 80)
    np.testing.assert_allclose(metrics.singular_values(points), expected, rtol=1e-12)
    share = expected / expected.sum()
    divergence = np.sum(np.log(1 / len(share) / share)) / len(share)
    assert metrics.spectral_decay(points) == pytest.approx(divergence, rel=1e-12)


def test_spectral_decay_of_uniform_and_unused_directions():
    assert metrics.spectral_decay(np.eye(8)) == pytest.approx(0, abs=1e-12)
    unused = metrics.spectral_decay(np.concatenate([rows(3), np.zeros((90, 2))], axis=1))
    assert 1 < unused < 10
    assert np.isnan(metrics.spectral_decay(np.zeros((5, 3))))


@pytest.mark.parametrize("block", [48, 112])
def test_uniformity(monkeypatch, block):
    monkeypatch.setattr(geometry, "PAIRS", 90 * block)
    points = rows(4)
    points[[5, 60]] = 0
    directions = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-300)
    squares = ((directions[:, None] - directions[None]) ** 2).sum(-1)
    expected = np.log(np.exp(-2 * squares)[~np.eye(90, dtype=bool)].mean())
    assert metrics.uniformity(points) == pytest.approx(expected, rel=1e-6)


def test_uniformity_of_equal_rows_is_zero():
    assert metrics.uniformity(np.ones((20, 4))) == pytest.approx(0, abs=1e-6)


def test_alignment():
    points, labels = rows(3, 12) * np.linspace(0.5, 3, 12)[:, None], np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4])
    directions = points / np.linalg.norm(points, axis=1, keepdims=True)
    pairs = [(i, j) for i in range(12) for j in range(i) if labels[i] == labels[j]]
    expected = np.mean([np.sum((directions[i] - directions[j]) ** 2) for i, j in pairs])
    assert metrics.alignment(points, labels) == pytest.approx(expected, rel=1e-12)
    assert metrics.alignment(np.ones((4, 3)), np.zeros(4, int)) == pytest.approx(0, abs=1e-12)
    assert np.isnan(metrics.alignment(points, np.arange(12)))


def test_effective_rank():
    q, _ = np.linalg.qr(rows(4, 6))
    assert q.shape[0] == 6
    for values in ([1.0, 1.0, 1.0], [5.0, 1.0, 0.5], [2.0, 0.0, 0.0]):
        points = q[:, : len(values)] * np.asarray(values) @ np.linalg.qr(rows(5, 3)[:, :3])[0].T
        share = np.asarray(values) / np.sum(values)
        entropy = -sum(p * np.log(p) for p in share if p > 0)
        assert metrics.effective_rank(points) == pytest.approx(np.exp(entropy), rel=1e-9)
    assert metrics.effective_rank(np.zeros((3, 2))) == 1
