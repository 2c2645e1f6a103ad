"""Figures for degenerate inputs."""

from pathlib import Path

import numpy as np

from dml_jax.analysis import figures, report


def test_principal_components() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(50, 4)) * np.array([1.0, 9.0, 3.0, 0.1])
    found = figures.principal_components(points)
    u, s, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs(u[:, :2] * s[:2]), rtol=1e-8, atol=1e-10)


def test_one_dimension_and_names_that_look_like_formulas(tmp_path: Path) -> None:
    embeddings = np.linspace(-1, 1, 6)[:, None]
    np.testing.assert_array_equal(figures.principal_components(embeddings)[:, 1], 0)
    figures.plot_class_map(tmp_path / "map.png", embeddings, np.array([0, 1, 2, 0, 1, 2]), ["$x_{$", "a$b", "plain"])
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_names_in_the_report_are_escaped() -> None:
    assert report._text("<b>\x1b[2J\u202e & caf\udce9") == r"&lt;b&gt;\x1b[2J\u202e &amp; caf\udce9"
