"""Figures for degenerate inputs, and which images a retrieval grid shows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax.analysis import figures, report
from dml_jax.data.split import Split


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


@pytest.mark.parametrize("separate", [False, True])
def test_a_grid_shows_the_nearest_images(separate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the gallery, if there is one; of the other queries, if not."""
    rng = np.random.default_rng(0)

    def split(count: int, first: int, gallery: Split | None = None) -> tuple[Split, np.ndarray]:
        rows = rng.normal(size=(count, 4))
        read = lambda i, rng: np.full((2, 2, 3), first + i, np.uint8)  # noqa: E731
        made = Split(np.arange(count) % 3, [str(i) for i in range(count)], read, ["a", "b", "c"], gallery)
        return made, rows / np.linalg.norm(rows, axis=1, keepdims=True)

    gallery, gallery_rows = split(20, 100)
    queries, rows = split(60, 0, gallery if separate else None)
    shown: list[Any] = []
    monkeypatch.setattr(figures, "plot_retrieved_images", lambda path, *arguments: shown.extend(arguments))
    figures.plot_retrieval_grid(tmp_path / "grid.png", rows, queries, gallery_rows if separate else None)
    images, correct = shown
    assert len(images) == figures.QUERIES
    for row, hits in zip(images, correct, strict=True):
        query, *found = (int(image[0, 0, 0]) for image in row)
        cosines = (gallery_rows if separate else rows) @ rows[query]
        if not separate:
            cosines[query] = -2
        expected = np.argsort(-cosines)[: figures.NEIGHBORS]
        assert found == (expected + 100 * separate).tolist()
        labels = gallery.labels if separate else queries.labels
        assert hits == (labels[expected] == queries.labels[query]).tolist()


def test_names_in_the_report_are_escaped() -> None:
    assert report._text("<b>\x1b[2J\u202e & caf\udce9") == r"&lt;b&gt;\x1b[2J\u202e &amp; caf\udce9"
