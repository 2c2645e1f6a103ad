"""Which images, numbers and names figures show, against loops and definitions written by hand; how
they are stored for the report."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax import drawing, seal
from dml_jax.analysis import curves, embedding_maps, findings, retrieval, spectra
from dml_jax.analysis.findings import Finding
from dml_jax.errors import CheckpointError
from dml_jax.evaluation import geometry
from tests.analysis.runs import Run


def drawn(found: Finding) -> Any:
    """The axes of a finding."""
    return findings.side_by_side({"": found}).axes


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("separate", [False, True])
def test_the_nearest_images_are_shown(separate: bool, distance: str) -> None:
    """They come from the gallery, or from the other queries if there is none."""
    rng, names = np.random.default_rng(0), ["a", "b", "c"]
    other = rng.normal(size=(20, 4)), np.arange(20) % 3, names
    gallery = Run(*other, first=100, distance=distance) if separate else None
    run = Run(rng.normal(size=(60, 4)), np.arange(60) % 3, names, gallery, distance=distance)
    (found,) = retrieval.findings(run, "test")
    assert len(found.pictures) == retrieval.QUERIES
    labels, others = (gallery or run).labels, (gallery or run).rows
    notes = run.rows @ others.T
    far = -notes
    if distance == "euclidean":
        notes = far = np.linalg.norm(run.rows[:, None] - others[None], axis=2)
    if not separate:
        far = far + 99 * np.eye(60)
    for _, pictures in found.pictures:
        query, *near = (int(picture.pixels[0, 0, 0]) for picture in pictures)
        expected = np.argsort(far[query])[: retrieval.NEIGHBORS]
        assert near == (expected + 100 * separate).tolist()
        hits = labels[expected] == run.labels[query]
        marks = ["query", *np.where(hits, "right", "wrong")]
        assert [picture.mark for picture in pictures] == marks
        shown = [(picture.image, picture.name) for picture in pictures[1:]]
        assert shown == [(str(i), "abc"[labels[i]]) for i in expected]
        assert [float(picture.note) for picture in pictures[1:]] == pytest.approx(
            notes[query, expected], abs=6e-4 if distance == "cosine" else 6e-3
        )
    assert found.columns["nearest"] == [str(i) for i in far.argmin(axis=1)]
    (classes,) = retrieval.class_findings(run, "test")
    hits = labels[far.argmin(axis=1)] == run.labels
    by_name = dict(zip(classes.columns["class"], classes.columns["recall@1"], strict=True))
    assert by_name == {n: pytest.approx(hits[run.labels == c].mean()) for c, n in enumerate(names)}


@pytest.mark.parametrize("separate", [False, True])
def test_photographs_of_one_session_are_not_retrieved(separate: bool) -> None:
    """Nor do classes of one session count."""
    rng, names = np.random.default_rng(0), ["a", "b", "c"]
    labels, taken = np.arange(30) % 3, np.arange(30) // 6
    taken[labels == 2] = 9
    rows = rng.normal(size=(30, 4)) + 4 * rng.normal(size=(10, 3, 4))[taken, labels]
    days = [f"day {day}" for day in taken]
    other = rng.permutation(30)
    gallery = Run(rows[other] + 0.1, labels[other], names, sessions=[days[i] for i in other]) if separate else None
    run = Run(rows, labels, names, gallery, sessions=days)
    others = gallery or run
    far, found = -run.rows @ others.rows.T, np.array(others.splits["test"].metadata["session"])
    same_class = labels[:, None] == others.labels
    far[same_class & (np.array(days)[:, None] == found)] = 8
    if not separate:
        np.fill_diagonal(far, 9)
    _, indices = retrieval.search(run, "test", 5)
    np.testing.assert_array_equal(indices, np.argsort(far, axis=1)[:, :5])
    hits = others.labels[far.argmin(axis=1)] == labels
    (classes,) = retrieval.class_findings(run, "test")
    assert {row[0]: row[1:] for row in zip(*classes.columns.values(), strict=True)} == {
        name: (pytest.approx(hits[labels == c].mean()), 10) for c, name in enumerate("ab")
    }


def test_a_map() -> None:
    """Its components, the explained variance, and colours of the largest or of chosen classes."""
    rng = np.random.default_rng(0)
    names = ["$x_{$", *"bcdefghijkl"]  # the first looks like a formula
    run = Run(rng.normal(size=(62, 5)) * [4, 2, 1, 1, 1], np.arange(62) % 12, names)
    (found,) = embedding_maps.by_components(run, "test")
    u, s, _ = np.linalg.svd(run.rows - run.rows.mean(axis=0), full_matrices=False)
    assert f"explain {(s[:2] ** 2).sum() / (s**2).sum():.0%} of the variance" in found.caption
    for axis, name in enumerate("xy"):
        assert abs(np.corrcoef(found.columns[name], u[:, axis])[0, 1]) > 0.999
    grey, *coloured = drawn(found)[0].collections
    assert [part.get_label() for part in coloured] == [r"\$x_{\$", *names[1:7]]
    assert len(grey.get_offsets()) == (run.labels > 6).sum()
    run.classes = tuple("lkjihgfed")
    (chosen,) = embedding_maps.by_components(run, "test")
    rows = zip(*found.columns.values(), strict=True)
    assert [*zip(*chosen.columns.values(), strict=True)] == [row for row in rows if row[1] in run.classes]
    _, *coloured = drawn(chosen)[0].collections
    looks = {(part.get_facecolor().tobytes(), part.get_paths()[0].vertices.tobytes()) for part in coloured}
    assert len(looks) == len(coloured) == 9


def test_thumbnails_lie_in_their_cells() -> None:
    points = np.array([[0.0, 0.0], [0.1, 0.2], [4.0, 4.0], [3.1, 0.4], [0.6, 0.45]])
    found = embedding_maps.thumbnail_positions(points, cells=4)
    assert sorted(found) == [(2, 3, 3), (3, 3, 0), (4, 0, 0)]
    line = np.linspace(-1, 1, 6)[:, None]
    np.testing.assert_array_equal(embedding_maps.principal_components(line)[0][:, 1], 0)


def test_spectra() -> None:
    x, labels = np.random.default_rng(3).normal(size=(30, 8)), np.arange(30) % 5
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    space = spectra.measure(x * 3, labels)
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(space.singular_values, values / values.sum(), rtol=1e-9)
    assert space.scalars["effective_rank"] == pytest.approx(geometry.effective_rank(x * 3))


def test_models_side_by_side(tmp_path: Path) -> None:
    """Each as it is alone, below its name, in the same limits; the numbers name the model."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 5))
    shifted = {"wide": rows, "narrow": rows + 9}
    runs = {name: Run(rows, np.arange(40) % 3, "abc") for name, rows in shifted.items()}
    found = {name: spectra.findings(run, "test") for name, run in runs.items()}
    figure = findings.side_by_side({name: each[0] for name, each in found.items()})
    assert [part.get_suptitle() for part in figure.subfigs] == list(runs)
    wide, narrow = figure.axes
    assert wide.get_ylim() == narrow.get_ylim()
    for axes, each in zip(figure.axes, found.values(), strict=True):
        values = each[0].columns["share_of_singular_values"]
        np.testing.assert_allclose(axes.lines[0].get_ydata(), values, atol=1e-9)
    findings.write_analysis(tmp_path, "spectra", "Geometry", 7, found)
    with (tmp_path / "analysis" / "spectra.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["wide"] * 5 + ["narrow"] * 5
    (section,) = findings.read_sections(tmp_path, ())
    assert all(each[0].caption.split(". ")[-1] in section.body for each in found.values())


def test_findings_are_written_and_read_in_order(tmp_path: Path) -> None:
    columns = {"x": [1], "y": [1 / 3], "name": ["caf\udce9"]}
    found = Finding("a", "what <it> shows", lambda figure: None, columns, listed=True)
    for file, to in (
        ("tsne", "analysis"),
        ("classes", "figures"),
        ("classes", "analysis"),
        ("classes-train", "analysis"),
    ):
        name, dash, split = file.partition("-")
        made = {"": [found._replace(name=name)]}
        findings.write_analysis(tmp_path, name, name.upper(), 7, made, suffix=dash + split, to=to)
    lines = (tmp_path / "analysis" / "tsne.csv").read_text().splitlines()
    assert lines == ["x,y,name", r"1,0.3333333,caf\udce9"]
    order = ("classes", "components", "tsne")
    sections = findings.read_sections(tmp_path, order)
    for section, name in zip(sections, ("classes", "classes-train", "tsne"), strict=True):
        assert f'href="analysis/{name}.csv"' in section.body  # the newer classes
    assert (sections[2].title, sections[2].note) == ("TSNE", "(step 7)")
    assert "what &lt;it&gt; shows" in sections[2].body
    assert r"<td class=words>caf\udce9</td>" in sections[2].body
    (tmp_path / "analysis" / "tsne.json").write_text(json.dumps({"title": "x"}))
    seal.close(tmp_path, "run", names=[])  # of a run that has written none of them
    with pytest.raises(CheckpointError, match=r"classes.json: is not in manifest.json; delete it"):
        findings.read_sections(tmp_path, order)
    (tmp_path / seal.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"tsne.json: is truncated or damaged .*; delete it"):
        findings.read_sections(tmp_path, order)
    assert findings.read_sections(tmp_path / "nothing", ()) == []


def test_curves() -> None:
    lines = [
        {"step": 1, "loss": 3.0, "loss_a": 1.0},
        {"step": 2, "loss": 2.0, "train/recall@1": 0.5, "test/recall@1": None, "grad_norm": 1.0},
    ]
    assert curves.loss_terms(lines) == {"loss": [(1, 3.0), (2, 2.0)], "loss_a": [(1, 1.0)]}
    assert curves.recalls(lines, {"step": 2, "recall@1": 0.7}) == {"train": [(2, 0.5)], "test": [(2, 0.7)]}


def test_montage() -> None:
    """Images of any size and shape, each within its cell."""
    sizes = ((1, 1), (3, 9), (200, 100), (7, 7), (1, 300))
    made = drawing.montage((np.zeros((*size, 3), np.uint8) for size in sizes), len(sizes), 3, 20, gap=2)
    assert made.shape == (40, 60, 3)
    expected = ((16, 16), (5, 16), (16, 8), (16, 16), (1, 16), (0, 0))
    for i, (height, width) in enumerate(expected):
        cell = made[i // 3 * 20 :, i % 3 * 20 :][:20, :20, 0] == 0
        assert (cell.any(axis=1).sum(), cell.any(axis=0).sum()) == (height, width)
        assert not cell[:2].any()
        assert not cell[:, :2].any()
