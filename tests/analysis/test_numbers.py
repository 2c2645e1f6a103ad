"""The numbers behind the figures, against loops and definitions written by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dml_jax import seal
from dml_jax.analysis import embedding_maps, findings, html, retrieval, spectra
from dml_jax.analysis.findings import Finding
from dml_jax.errors import CheckpointError
from dml_jax.evaluation import geometry


def units(seed: int, count: int, width: int = 6) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_recall_by_class() -> None:
    labels = np.array([0, 0, 0, 2, 2, 5, 5, 5, 5])
    nearest = np.array([0, 2, 2, 0, 2, 5, 2, 7, 5])
    found = retrieval.recall_by_class(labels, nearest == labels)
    assert [part.tolist() for part in found] == [[0, 2, 5], [1 / 3, 1 / 2, 2 / 4], [3, 2, 4]]


def test_spectra_of_the_parts() -> None:
    x, labels = units(3, 30, 8), np.arange(30) % 5
    space = spectra.measure(x * 3, labels)
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(space.singular_values, values / values.sum(), rtol=1e-9)
    assert space.scalars["effective_rank"] == pytest.approx(geometry.effective_rank(x * 3))


def test_thumbnails_lie_in_their_cells() -> None:
    points = np.array([[0.0, 0.0], [0.1, 0.2], [4.0, 4.0], [3.1, 0.4], [0.6, 0.45]])
    found = embedding_maps.thumbnail_positions(points, cells=4)
    assert sorted(found) == [(2, 3, 3), (3, 3, 0), (4, 0, 0)]


def test_findings_are_written_and_read_in_order(tmp_path: Path) -> None:
    def plot(path: Path) -> None:
        path.write_bytes(b"png")

    table = html.listing(("class", "share"), [("caf\udce9", 0.5)], "shares")
    found = Finding(
        "a", "what <it> shows", plot, ("x", "y", "name"), [(1, 1 / 3, "caf\udce9")], table=table
    )
    for name, suffix, to in (
        ("tsne", "", "analysis"),
        ("classes", "", "figures"),
        ("classes", "", "analysis"),
        ("classes", "-train", "analysis"),
    ):
        findings.write(
            tmp_path, name, name.upper(), 7, [found._replace(name=name)], suffix=suffix, to=to
        )
    assert (tmp_path / "analysis" / "tsne.csv").read_text().splitlines() == [
        "x,y,name",
        r"1,0.3333333,caf\udce9",
    ]
    sections = findings.read(tmp_path, ("classes", "components", "tsne"))
    links = [
        "analysis/classes.csv",
        "analysis/classes-train.csv",
        "analysis/tsne.csv",
    ]  # the newer classes
    assert [re.findall('href="(.*?)"', section.body) for section in sections] == [
        [link] for link in links
    ]
    assert (sections[2].title, sections[2].note) == ("TSNE", "(step 7)")
    assert "what &lt;it&gt; shows" in sections[2].body
    assert r"<td>caf\udce9</td>" in sections[2].body
    (tmp_path / "analysis" / "tsne.json").write_text(json.dumps({"title": "x"}))
    seal.close(tmp_path, "run", names=[])  # of a run that has written none of them
    with pytest.raises(CheckpointError, match=r"classes.json: is not in manifest.json; delete it"):
        findings.read(tmp_path, ("classes", "components", "tsne"))
    (tmp_path / seal.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"tsne.json: is truncated or damaged .*; delete it"):
        findings.read(tmp_path, ("classes", "components", "tsne"))
    assert findings.read(tmp_path / "nothing", ()) == []
