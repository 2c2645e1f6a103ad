"""The numbers behind the figures, against loops and definitions written by hand."""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.analysis import attention, embedding_maps, findings, heat_maps, html, retrieval, spectra
from dml_jax.analysis.findings import Finding
from dml_jax.config import Config
from dml_jax.errors import CheckpointError
from dml_jax.evaluation import geometry
from dml_jax.methods import mpn


def units(seed: int, count: int, width: int = 6) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_attention_statistics() -> None:
    """KL from uniform, weight on the own class and on the node itself; rows that sum to less than 1 are normalised."""
    rng = np.random.default_rng(0)
    weights = rng.random((2, 3, 5, 5)) * 0.2
    weights[0, 0, 0] = [0.3, 0, 0, 0, 0]
    weights[1] = 0.15
    labels = np.array([0, 0, 1, 1, 1])
    found = mpn.attention_statistics(mpn.normalised(weights), labels)
    for layer, head in np.ndindex(2, 3):
        divergence, own = [], []
        for i in range(5):
            p = weights[layer, head, i] / weights[layer, head, i].sum()
            divergence.append(sum(x * np.log(x / 0.2) for x in p if x > 0))
            own.append(sum(p[j] for j in range(5) if labels[j] == labels[i]))
        assert found.divergence[layer, head] == pytest.approx(np.mean(divergence), abs=1e-12)
        assert found.own_class[layer, head] == pytest.approx(np.mean(own))
    np.testing.assert_allclose(found.divergence[1], 0, atol=1e-12)
    np.testing.assert_allclose(found.own_class[1], (2 * 2 / 5 + 3 * 3 / 5) / 5)


def test_influence_by_kind() -> None:
    norms = np.array([[9.0, 3.0, 1.0, 2.0], [1.0, 2.0, 5.0, 4.0]])
    found = attention.mean_by_kind(norms, np.array([0, 2]), np.array([0, 0, 1, 1]))
    assert found == {"the image itself": 7.0, "same class": 3.5, "other classes": 1.5}
    assert "same class" not in attention.mean_by_kind(norms, np.array([0, 2]), np.arange(4))


def test_correlations_of_prototypes() -> None:
    rng = np.random.default_rng(0)
    prototypes, maps = rng.normal(size=(3, 4)), rng.normal(size=(2, 2, 3, 4))
    found = np.asarray(heat_maps.correlations(jnp.asarray(prototypes), jnp.asarray(maps)))
    for n, i, j, k in np.ndindex(2, 2, 3, 3):
        assert found[n, i, j, k] == pytest.approx(np.log1p(np.exp(maps[n, i, j] @ prototypes[k])), rel=1e-5)
    flat = found.copy()
    flat[..., 1] = 4.0
    assert heat_maps.most_selective(flat, 2).tolist() == [0, 2]


def test_recall_by_class() -> None:
    labels = np.array([0, 0, 0, 2, 2, 5, 5, 5, 5])
    nearest = np.array([0, 2, 2, 0, 2, 5, 2, 7, 5])
    found = retrieval.recall_by_class(labels, nearest)
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
    found = Finding("a", "what <it> shows", plot, ("x", "y", "name"), [(1, 1 / 3, "caf\udce9")], table=table)
    for name, suffix, to in (
        ("tsne", "", "analysis"),
        ("classes", "", "figures"),
        ("classes", "", "analysis"),
        ("classes", "-train", "analysis"),
    ):
        findings.write(tmp_path, name, name.upper(), 7, [found._replace(name=name)], suffix=suffix, to=to)
    assert (tmp_path / "analysis" / "tsne.csv").read_text().splitlines() == ["x,y,name", r"1,0.3333333,caf\udce9"]
    sections = findings.read(tmp_path, ("classes", "components", "tsne"))
    links = ["analysis/classes.csv", "analysis/classes-train.csv", "analysis/tsne.csv"]  # the newer classes
    assert [re.findall('href="(.*?)"', section.body) for section in sections] == [[link] for link in links]
    assert (sections[2].title, sections[2].note) == ("TSNE", "(step 7)")
    assert "what &lt;it&gt; shows" in sections[2].body
    assert r"<td>caf\udce9</td>" in sections[2].body
    (tmp_path / "analysis" / "tsne.json").write_text(json.dumps({"title": "x"}))
    with pytest.raises(CheckpointError, match=r"tsne.json: is truncated or damaged .*; delete it"):
        findings.read(tmp_path, ("classes", "components", "tsne"))
    assert findings.read(tmp_path / "nothing", ()) == []


def test_parts_are_those_of_diva(tmp_path: Path) -> None:
    from configs import omniglot_diva, omniglot_hist
    from dml_jax import config as configs

    def resolved(module: object) -> Config:
        return configs.resolve(module.get_config().to_dict())  # type: ignore[attr-defined]

    x = units(0, 5, 8)
    parts = spectra.parts(resolved(omniglot_diva), x)
    assert list(parts) == ["embedding", "discriminative", "selfsimilarity", "shared", "intra"]
    np.testing.assert_allclose(parts["shared"], x[:, 4:6] / np.linalg.norm(x[:, 4:6], axis=1, keepdims=True))
    assert list(spectra.parts(resolved(omniglot_hist), x)) == ["embedding"]
