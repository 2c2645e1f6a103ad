"""The classifier against its equations in float64, and what is measured without the images it
judges."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import optimize, special

from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import Photographs

D = 12


def photographs(classes: int, images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 of classes that differ in all directions, their images mostly in the first
    three."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    spread = np.where(np.arange(D) < 3, 1.0, 0.3)
    rows = rng.standard_normal((classes, D))[labels] + spread * rng.standard_normal((len(labels), D))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def of(rows: np.ndarray, labels: np.ndarray, sessions: Any = "") -> Photographs:
    return Photographs(rows, labels, np.broadcast_to(np.array(sessions, np.str_), len(rows)))


def discriminants(rows: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> list[np.ndarray]:
    """x' of rows and queries, up to a rotation, which changes no score, by eigenvectors."""
    mean, covariance = rows.mean(axis=0), np.zeros((D, D))
    for c in np.unique(labels):
        own = rows[labels == c] - rows[labels == c].mean(axis=0)
        covariance += own.T @ own / len(rows)
    values, vectors = np.linalg.eigh(0.5 * covariance + 0.5 * np.trace(covariance) / D * np.eye(D))
    white = vectors / np.sqrt(values)
    units = [((x - mean) @ white) for x in (rows, queries)]
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in units]
    means = np.stack([units[0][labels == c].mean(axis=0) for c in np.unique(labels)])
    basis = np.linalg.svd(means, full_matrices=False)[2].T
    parts = [x @ basis for x in units]
    return [x / np.linalg.norm(x, axis=1, keepdims=True) for x in parts]


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_minimise_the_regression(classes: int) -> None:
    """Against another minimiser of the balanced, penalised cross-entropy, in float64."""
    rows, labels = photographs(classes, 6, seed=0)
    rows, labels = rows[:-3], labels[:-3]  # the last class has fewer images
    queries = photographs(3, 4, seed=1)[0]
    x, asked = discriminants(rows.astype(float), labels, queries.astype(float))
    weight = len(labels) / classes / np.bincount(labels)[labels]

    def loss(flat: np.ndarray) -> float:
        w, b = flat[:-classes].reshape(classes, -1), flat[-classes:]
        z = x @ w.T + b
        own = z[np.arange(len(z)), labels] - np.log(np.exp(z).sum(axis=1))
        # Two classes have one vector of weights, which is penalised once.
        return float(-(weight * own).sum() + (w**2).sum() / (1 if classes == 2 else 2))

    start = np.zeros(classes * (x.shape[1] + 1))
    flat = optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-7}).x
    wanted = asked @ flat[:-classes].reshape(classes, -1).T + flat[-classes:]
    found = open_set.fit(rows, labels).scores(queries)
    # A constant for all classes changes no answer.
    wanted, found = (z - z.mean(axis=1, keepdims=True) for z in (wanted, found))
    np.testing.assert_allclose(found, wanted, atol=5e-3)


def test_many_images_are_compared_with_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_set, "LARGEST", 10)
    rows, labels = photographs(5, 6, seed=0)
    queries = photographs(3, 4, seed=1)[0]
    x, asked = discriminants(rows.astype(float), labels, queries.astype(float))
    means = np.stack([x[labels == c].mean(axis=0) for c in range(5)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found = open_set.fit(rows, labels).scores(queries)
    np.testing.assert_allclose(found, asked @ means.T / 0.05, atol=1e-3)


def test_margins_and_probabilities() -> None:
    scores = np.array([[2.0, 1.0, 5.0, 0.0], [0.0, 3.0, 1.0, 2.0]], np.float32)
    best, margins = open_set.margins(scores, np.array([True, True, False, False]))
    assert best.tolist() == [0, 1]
    wanted = [2 - np.log(np.exp([1, 5, 0]).sum()), 3 - np.log(np.exp([0, 1, 2]).sum())]
    np.testing.assert_allclose(margins, wanted, rtol=1e-6)
    shares = open_set.probabilities(scores, np.array([True, True, False, False]), 2.0)
    first = np.exp([1.0, 0.5]) / np.exp([1.0, 0.5]).sum()
    np.testing.assert_allclose(shares[0], [*first, 0, 0], rtol=1e-6)
    assert open_set.margins(scores[:, :1], np.array([True]))[1].tolist() == [0, 0]


def in_sessions(classes: int, each: int, seed: int, shift: float = 0.8) -> Photographs:
    """Photographs of every class in three sessions, which move all images of a class by a vector of
    their own."""
    rng = np.random.default_rng(seed)
    labels, session = (np.repeat(np.arange(classes), 3 * each), np.tile(np.repeat(np.arange(3), each), classes))
    centres, moves = rng.standard_normal((classes, D)), shift * rng.standard_normal((classes, 3, D))
    rows = centres[labels] + moves[labels, session] + 0.2 * rng.standard_normal((len(labels), D))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return of(rows.astype(np.float32), labels, session.astype(str))


def test_no_image_decides_how_it_is_judged() -> None:
    """Every answer to a session or class that is left out equals that of a classifier without it;
    classes 0 to 2 are enrolled, and 3 to 6 are others."""
    taken = in_sessions(7, 2, seed=3)
    taken = taken.where((taken.labels > 0) | (taken.sessions == "0"))  # class 0 has one session
    measured = open_set.measure(taken, 3, np.arange(7))
    tested = np.flatnonzero(taken.labels)
    assert len(measured.known) == len(tested) == 36
    for session in "012":
        kept = (taken.sessions != session) & (taken.labels != 0)
        if session != "0":
            kept |= taken.labels == 0
        asked = np.flatnonzero((taken.sessions == session) & (taken.labels != 0))
        # Four images of two sessions are those of the median enrolled class: all remaining ones.
        scores = open_set.fit(taken.rows[kept], taken.labels[kept]).scores(taken.rows[asked])
        classes = np.unique(taken.labels[kept])
        answers = measured.known[np.searchsorted(tested, asked)]
        for row, found, label in zip(scores, answers, taken.labels[asked], strict=True):
            z = np.where((classes < 3) | (classes == label), row.astype(float), -np.inf)
            rest = np.log(np.exp(np.delete(row, z.argmax())).sum())
            assert found["margin"] == pytest.approx(z.max() - rest, abs=1e-4)
            soft = np.exp(z / measured.temperature)
            assert found["probability"] == pytest.approx(soft.max() / soft.sum(), abs=1e-4)
            assert found["label"] == label
            assert found["rank"] == (z > z[classes == label]).sum()
    for label in range(7):  # as many turns as classes, if these are few
        kept = taken.labels != label
        scores = open_set.fit(taken.rows[kept], taken.labels[kept]).scores(taken.rows[~kept])
        margins = open_set.margins(scores, np.unique(taken.labels[kept]) < 3)[1]
        found = measured.strangers["margin"][measured.strangers["label"] == label]
        np.testing.assert_allclose(found, margins, atol=1e-4)


def test_sessions_of_near_copies() -> None:
    """Equal images are one session if theirs is unknown; the larger part of a class is not tested
    by the smaller one."""
    rows = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert open_set.session_groups(of(rows, labels)).tolist() == [0, 0, 1, 1] * 2
    assert open_set.session_groups(of(rows, labels, ["a", "b"] * 4)).tolist() == [0, 1] * 4
    measured = open_set.measure(of(rows, labels, ["a", "a", "a", "b"] * 2), 2, np.arange(0))
    assert measured.known["label"].tolist() == [0, 1]
    assert len(measured.strangers) == 0
    one = open_set.measure(of(rows, labels, "a"), 2, np.arange(2))
    assert (len(one.known), one.temperature) == (0, 1)  # nothing says that it is another one


def test_no_session_is_tested_without_most_of_the_enrolled_classes() -> None:
    """Images of other classes would be compared with their own class only, and be right."""
    taken = in_sessions(7, 2, seed=3)
    taken = taken.where((taken.labels > 2) | (taken.sessions == "0"))
    measured = open_set.measure(taken, 3, np.arange(3, 7))
    assert set(measured.known["label"]) == {3, 4, 5, 6}
    assert len(measured.known) == 4 * 4  # two of three sessions


def test_temperature_is_the_likeliest() -> None:
    """Scores that are three times too far apart for their classes get the temperature 3; a few
    right answers make none certain."""
    rng = np.random.default_rng(0)
    scores = 3 * rng.standard_normal((20_000, 4))
    shares = np.exp(scores / 3) / np.exp(scores / 3).sum(axis=1, keepdims=True)
    right = (shares.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    place, sums = np.arange(len(right)), open_set.log_sums(scores)
    surprise = open_set._surprise(scores[place, right], scores.max(axis=1), sums)
    assert open_set.TEMPERATURES[surprise.argmin()] == pytest.approx(3, rel=0.06)
    wanted = special.logsumexp(scores[:99, :, None] / open_set.TEMPERATURES, axis=1)
    np.testing.assert_allclose(sums[:99], wanted, rtol=0, atol=1e-12)
    highest = np.exp(scores[:9].max(axis=1) / 2 - special.logsumexp(scores[:9] / 2, axis=1))
    found = open_set._surprise(scores[:9].max(axis=1), scores[:9].max(axis=1), sums[:9])
    two = np.flatnonzero(open_set.TEMPERATURES == 2)
    assert found[two] == pytest.approx(-np.log([*highest, 1 - highest.mean()]).sum(), rel=1e-12)


def test_memory_does_not_hold_all_scores() -> None:
    """Blocks of scores are reduced; their size changes no answer."""
    taken = in_sessions(500, 1, seed=1)
    measured = []
    for block in (1 << 14, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(open_set, "BLOCK_SCORES", block)
            patch.setattr(open_set, "LARGEST", 0)
            tracemalloc.start()
            measured.append(open_set.measure(taken, 400, np.arange(400, 500)))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert (peak < 1500 * 500 * 8) == (block < 1 << 30)
    for name in ("known", "strangers"):
        blocks, whole = (getattr(each, name) for each in measured)
        for field in open_set.ANSWERS.names:
            np.testing.assert_allclose(blocks[field], whole[field], rtol=1e-5, atol=1e-5)


def test_choose() -> None:
    rows, labels = photographs(3, 40, seed=2)
    assert np.bincount(open_set.choose(of(rows, labels)).labels).tolist() == [20, 20, 20]
    alone = rows[::40], np.arange(3)  # no differences within classes
    assert np.isfinite(open_set.fit(*alone).scores(rows)).all()
    assert open_set.fit(rows[:5], np.zeros(5, int)).scores(rows).shape == (120, 1)
