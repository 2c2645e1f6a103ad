"""Figures for degenerate inputs, and which images, numbers and names the figures and the report
show."""

from pathlib import Path

import numpy as np
import pytest

from dml_jax import drawing
from dml_jax.analysis import curves, embedding_maps, findings, retrieval
from dml_jax.analysis.run_report import SUBJECTS
from tests.analysis.runs import Run


def test_one_dimension_and_names_that_look_like_formulas(tmp_path: Path) -> None:
    embeddings = np.linspace(-1, 1, 6)[:, None]
    np.testing.assert_array_equal(embedding_maps.principal_components(embeddings)[0][:, 1], 0)
    run = Run(embeddings, [0, 1, 2, 0, 1, 2], ["$x_{$", "a$b", "plain"])
    (found,) = embedding_maps.by_components(run, "test")
    found.plot(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("separate", [False, True])
def test_the_nearest_images_are_shown(separate: bool, distance: str) -> None:
    """They come from the gallery, or from the other queries if there is none."""
    rng, names = np.random.default_rng(0), ["a", "b", "c"]
    other = rng.normal(size=(20, 4)), np.arange(20) % 3, names
    gallery = Run(*other, first=100, distance=distance) if separate else None
    run = Run(rng.normal(size=(60, 4)), np.arange(60) % 3, names, gallery, distance=distance)
    found = {finding.name: finding for finding in retrieval.findings(run, "test")}
    strips = found["retrieval"].pictures
    assert len(strips) == retrieval.QUERIES
    labels, others = (gallery or run).labels, (gallery or run).rows
    notes = run.rows @ others.T
    far = -notes
    if distance == "euclidean":
        notes = far = np.linalg.norm(run.rows[:, None] - others[None], axis=2)
    if not separate:
        far = far + 99 * np.eye(60)
    for _, pictures in strips:
        query, *near = (int(picture.pixels[0, 0, 0]) for picture in pictures)
        expected = np.argsort(far[query])[: retrieval.NEIGHBORS]
        assert near == (expected + 100 * separate).tolist()
        hits = labels[expected] == run.labels[query]
        assert [picture.mark for picture in pictures] == ["query"] + [
            "right" if hit else "wrong" for hit in hits
        ]
        assert [picture.image for picture in pictures[1:]] == [str(i) for i in expected]
        assert [picture.name for picture in pictures[1:]] == ["abc"[labels[i]] for i in expected]
        assert [float(picture.note) for picture in pictures[1:]] == pytest.approx(
            notes[query, expected], abs=6e-4 if distance == "cosine" else 6e-3
        )
    (classes,) = retrieval.class_findings(run, "test")
    hits = labels[far.argmin(axis=1)] == run.labels
    assert {row[0]: row[1] for row in classes.rows} == {
        name: pytest.approx(hits[run.labels == c].mean()) for c, name in enumerate(names)
    }


@pytest.mark.parametrize("separate", [False, True])
def test_photographs_of_one_session_are_not_retrieved(separate: bool) -> None:
    """Nor do classes of one session count."""
    rng, names = np.random.default_rng(0), ["a", "b", "c"]
    labels, taken = np.arange(30) % 3, np.arange(30) // 6
    taken[labels == 2] = 9
    rows = rng.normal(size=(30, 4)) + 4 * rng.normal(size=(10, 3, 4))[taken, labels]
    days = [f"day {day}" for day in taken]
    other = rng.permutation(30)
    gallery = (
        Run(rows[other] + 0.1, labels[other], names, sessions=[days[i] for i in other])
        if separate
        else None
    )
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
    assert {row[0]: row[1:] for row in classes.rows} == {
        name: (pytest.approx(hits[labels == c].mean()), 10) for c, name in enumerate("ab")
    }


def test_a_map_states_the_explained_variance() -> None:
    rng = np.random.default_rng(0)
    run = Run(rng.normal(size=(40, 5)) * [4, 2, 1, 1, 1], np.arange(40) % 9, list("abcdefghi"))
    (found,) = embedding_maps.by_components(run, "test")
    centred = run.rows - run.rows.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    share = s**2 / np.sum(s**2)
    assert f"explain {share[:2].sum():.0%} of the variance" in found.caption
    drawn = np.array([row[2:] for row in found.rows])
    for axis in (0, 1):
        assert abs(np.corrcoef(drawn[:, axis], u[:, axis])[0, 1]) > 0.999
    axes = drawing.figure(3, 3).subplots()
    found.panel.draw(axes)
    assert [part.get_label() for part in axes.collections[1:]] == list("abcdefg")
    assert len(axes.collections[0].get_offsets()) == (run.labels > 6).sum()


def test_chosen_classes_of_a_map() -> None:
    """The points of the map of all images; more than seven classes differ in colour or marker."""
    rng = np.random.default_rng(0)
    run = Run(rng.normal(size=(60, 5)), np.arange(60) % 12, list("abcdefghijkl"))
    (whole,) = embedding_maps.by_components(run, "test")
    run.classes = tuple("lkjihgfed")
    (found,) = embedding_maps.by_components(run, "test")
    assert found.rows == [row for row in whole.rows if row[1] in run.classes]
    axes = drawing.figure(3, 3).subplots()
    found.panel.draw(axes)
    looks = [
        (part.get_facecolor().tobytes(), part.get_paths()[0].vertices.tobytes())
        for part in axes.collections[1:]
    ]
    assert len(set(looks)) == len(looks) == 9
    assert [part.get_label() for part in axes.collections[1:]] == list(run.classes)
    assert len(axes.collections[0].get_offsets()) == 0


def test_models_in_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as it is alone: curves of its name in one panel, or a panel of its name."""
    rng, drawn, save = np.random.default_rng(0), {}, drawing.save
    monkeypatch.setattr(
        drawing,
        "save",
        lambda figure, path: (drawn.update({path.stem: figure}), save(figure, path)),
    )
    rows = rng.normal(size=(40, 5))
    runs = {
        name: Run(rows + shift, np.arange(40) % 3, "abc")
        for name, shift in (("wide", 0), ("narrow", 9))
    }
    for subject in (SUBJECTS[name] for name in ("spectra", "components")):
        for found in findings.side_by_side(runs, subject, "test"):
            found.plot(tmp_path / f"{found.name}.png")
            alone = [
                next(f for f in subject.findings(run, "test") if f.name == found.name)
                for run in runs.values()
            ]
            assert found.columns == ("model", *alone[0].columns)
            assert found.rows == [
                (n, *row) for n, one in zip(runs, alone, strict=True) for row in one.rows
            ]
            assert all(one.caption in found.caption for one in alone)
    assert set(drawn) == {"spectra", "components"}
    (axes,) = drawn["spectra"].axes
    assert [line.get_label() for line in axes.lines] == ["wide: embedding", "narrow: embedding"]
    assert len({line.get_color() for line in axes.lines}) == 2
    assert [axes.get_title() for axes in drawn["components"].axes] == ["wide", "narrow"]


def test_curves() -> None:
    lines = [
        {"step": 1, "loss": 3.0, "loss_a": 1.0},
        {"step": 2, "loss": 2.0, "train/recall@1": 0.5, "test/recall@1": None, "grad_norm": 1.0},
    ]
    assert curves.loss_terms(lines) == {"loss": [(1, 3.0), (2, 2.0)], "loss_a": [(1, 1.0)]}
    assert curves.recalls(lines, {"step": 2, "recall@1": 0.7}) == {
        "train": [(2, 0.5)],
        "test": [(2, 0.7)],
    }


def test_montage() -> None:
    """Images of any size and shape, each within its cell."""
    sizes = ((1, 1), (3, 9), (200, 100), (7, 7), (1, 300))
    made = drawing.montage(
        (np.zeros((*size, 3), np.uint8) for size in sizes), len(sizes), 3, 20, gap=2
    )
    assert made.shape == (40, 60, 3)
    expected = ((16, 16), (5, 16), (16, 8), (16, 16), (1, 16), (0, 0))
    for i, (height, width) in enumerate(expected):
        cell = made[i // 3 * 20 :, i % 3 * 20 :][:20, :20, 0] == 0
        assert (cell.any(axis=1).sum(), cell.any(axis=0).sum()) == (height, width)
        assert not cell[:2].any()
        assert not cell[:, :2].any()
