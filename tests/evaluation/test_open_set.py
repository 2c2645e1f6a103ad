"""The margin against loops in float64, and its promised rates on classes that it was not measured
on."""

from typing import Any

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import Photographs, Scorer

D = 12


def photographs(classes: int, images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 of classes that differ in all directions, their images mostly in the first
    three."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    spread = np.where(np.arange(D) < 3, 1.0, 0.3)
    rows = rng.standard_normal((classes, D))[labels] + spread * rng.standard_normal(
        (len(labels), D)
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def of(rows: np.ndarray, labels: np.ndarray, sessions: Any = "") -> Photographs:
    return Photographs(rows, labels, np.broadcast_to(np.array(sessions, np.str_), len(rows)))


def by_loops(query, enrolled, labels, background):
    """(class, margin) as in the equations, with the inverse of the covariance in place of a map."""
    rows = background.rows.astype(np.float64)
    covariance = np.zeros((D, D))
    for images, of in ((rows, background.labels), (enrolled.astype(np.float64), labels)):
        for c in np.unique(of):
            own = images[of == c]
            covariance += (own - own.mean(axis=0)).T @ (own - own.mean(axis=0))
    covariance /= len(rows) + len(enrolled)
    inverse = np.linalg.inv(0.5 * covariance + 0.5 * np.trace(covariance) / D * np.eye(D))

    def cosine(a, b):
        return (a @ inverse @ b) / np.sqrt((a @ inverse @ a) * (b @ inverse @ b))

    def to_class(images):
        images = images - rows.mean(axis=0)
        units = [image / np.sqrt(image @ inverse @ image) for image in images]
        return (max(cosine(x, image) for image in images) + cosine(x, np.sum(units, axis=0))) / 2

    x = query.astype(np.float64) - rows.mean(axis=0)
    own = {c: to_class(enrolled[labels == c].astype(np.float64)) for c in np.unique(labels)}
    best = max(own, key=lambda c: own[c])
    others = [value for c, value in own.items() if c != best]
    others += [to_class(rows[background.labels == c]) for c in np.unique(background.labels)]
    return best, own[best] - 0.2 * np.log(np.sum(np.exp(np.array(others) / 0.2)))


def test_margins_against_loops() -> None:
    rows, labels = photographs(9, 5, seed=0)
    background = of(rows[labels > 5], labels[labels > 5])
    enrolled, queries = (
        (labels < 6) & (np.arange(45) % 5 > 1),
        (labels < 6) & (np.arange(45) % 5 < 2),
    )
    scorer = Scorer(background, of(rows[enrolled], labels[enrolled]))
    found = scorer.decide(rows[queries])
    for i, query in enumerate(rows[queries]):
        label, margin = by_loops(query, rows[enrolled], labels[enrolled], background)
        assert found.labels[i] == label
        assert found.margins[i] == pytest.approx(margin, abs=1e-5)


def in_sessions(classes: int, each: int, seed: int, shift: float = 0.8) -> Photographs:
    """Photographs of every class in three sessions, which move all images of a class by a vector of
    their own."""
    rng = np.random.default_rng(seed)
    labels, session = (
        np.repeat(np.arange(classes), 3 * each),
        np.tile(np.repeat(np.arange(3), each), classes),
    )
    centres, moves = rng.standard_normal((classes, D)), shift * rng.standard_normal((classes, 3, D))
    rows = centres[labels] + moves[labels, session] + 0.2 * rng.standard_normal((len(labels), D))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return of(rows.astype(np.float32), labels, session.astype(str))


def test_promises_hold_on_other_classes_and_sessions() -> None:
    """Of 6 draws; and without sessions, near-copies would promise more than the next session
    keeps."""
    held, accepted, promised, unaware = 0, [], [], []
    for seed in range(6):
        taken = in_sessions(60, 4, seed)
        first = taken.sessions == "0"
        enrolled = taken.where((taken.labels < 12) & first)
        background = taken.where(taken.labels >= 40)
        point = open_set.promise(open_set.measure(background, enrolled), 0.1)
        scorer = Scorer(background, enrolled)
        asked = taken.where((taken.labels < 12) & ~first)
        found = scorer.decide(asked.rows)
        right = ((found.labels == asked.labels) & (found.margins >= point.threshold)).mean()
        held += point.right[1] <= right <= point.right[2]
        others = taken.where((taken.labels >= 12) & (taken.labels < 40))
        accepted.append((scorer.decide(others.rows).margins >= point.threshold).mean())
        promised.append(point.right[0] - right)
        one = of(
            taken.rows[first], taken.labels[first], np.arange(first.sum()).astype(str)
        )  # each image its own
        kept = one.labels < 12
        naive = open_set.promise(
            open_set.measure(one.where(one.labels >= 40), one.where(kept)), 0.1
        )
        unaware.append(naive.right[0] - right)
    assert held >= 5
    assert np.mean(accepted) == pytest.approx(0.1, abs=0.04)
    assert abs(np.mean(promised)) < 0.12
    assert np.mean(unaware) > np.mean(promised) + 0.1


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_a_new_class_passes_at_the_promised_rate(rate: float) -> None:
    """Against loops: the most strangers pass with which at most a share of those of a class left
    out would."""
    taken = in_sessions(16, 4, 5)
    measured = open_set.measure(taken.where(taken.labels > 5), taken.where(taken.labels < 6))
    classes = measured.stranger_groups[:, 0]

    def of_new_classes(passing: int) -> float:
        accepted = 0
        for label in np.unique(classes):
            others = sorted(measured.strangers[classes != label], reverse=True)
            allowed = int(passing / len(classes) * len(others) + 1e-9)
            accepted += (measured.strangers[classes == label] > others[allowed]).sum()
        return accepted / len(classes)

    point = open_set.promise(measured, rate)
    passing = int((measured.strangers >= point.threshold).sum())
    assert point.strangers[0] == pytest.approx(of_new_classes(passing))
    assert of_new_classes(passing) <= rate < of_new_classes(passing + 1)


def test_no_image_decides_how_it_is_judged() -> None:
    """Margins of strangers and of held-out sessions, against an index and a background without
    them."""
    rows, labels = photographs(12, 4, seed=3)
    background = of(rows[labels > 5], labels[labels > 5], "one")
    index = (labels < 6) & (
        (labels == 0) | (np.arange(48) % 4 == 0)
    )  # four images of class 0, one of each other
    sessions = np.where(np.arange(index.sum()) < 2, "one", "two")
    enrolled = of(rows[index], labels[index], sessions)
    measured = open_set.measure(background, enrolled)
    for row, label, margin in zip(
        background.rows, background.labels, measured.strangers, strict=True
    ):
        rest = background.where(background.labels != label)
        assert margin == pytest.approx(
            by_loops(row, enrolled.rows, enrolled.labels, rest)[1], abs=1e-5
        )
    first = [
        by_loops(enrolled.rows[i], *enrolled.where(np.arange(9) > 1)[:2], background)[1]
        for i in (0, 1)
    ]
    kept = np.delete(np.arange(9), [2, 3])
    second = [by_loops(enrolled.rows[i], *enrolled.where(kept)[:2], background)[1] for i in (2, 3)]
    np.testing.assert_allclose(np.sort(measured.known), np.sort(first + second), atol=1e-5)
    assert measured.left_out == [1, 2, 3, 4, 5]
    assert measured.enrolled == 6


def test_sessions_of_near_copies() -> None:
    """Equal images are one session if theirs is unknown; a class of near-copies is left out."""
    rows = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert open_set.session_groups(of(rows, labels)).tolist() == [0, 0, 1, 1] * 2
    assert open_set.session_groups(of(rows, labels, ["a", "b"] * 4)).tolist() == [0, 1] * 4


def test_too_few_strangers() -> None:
    taken = in_sessions(10, 2, 0)
    for classes, rate in ((4, 0.1), (6, 0.01)):
        measured = open_set.measure(
            taken.where(taken.labels < classes), taken.where(taken.labels > 6)
        )
        with pytest.raises(
            DataError, match=f"images of {classes} classes that are not enrolled: are too few"
        ):
            open_set.promise(measured, rate)


@pytest.mark.parametrize(
    ("images", "classes", "rate", "message"),
    [
        (
            40,
            4,
            0.05,
            "40 images of 4 classes that.*accepted; give --calibrate=DIRECTORY with class folders "
            "of 5 other",
        ),
        (
            99,
            6,
            0.01,
            "99 images of 6 classes that.*at which 1 %.*class folders of other classes and 100 "
            "images or "
            "more",
        ),
        (
            50,
            5,
            0.001,
            "class folders of 50 other classes or more and 1,000 images or more, of which at most "
            "20 of a",
        ),
        (
            1,
            1,
            0.5,
            r"1 image of 1 class that.*class folders of 5 other classes or more and 2 images or "
            r"more",
        ),
        (
            5000,
            250,
            0.0001,
            r"at which 0\.01 % of strangers are accepted; give --false_accept_rate=0\.0002 or more",
        ),
        (5000, 250, 1e-320, "give --false_accept_rate=0"),
    ],
)
def test_what_is_missing_for_a_threshold(
    images: int, classes: int, rate: float, message: str
) -> None:
    """At most 20 images of each class and 5,000 in all take part, and one of them has to be
    accepted."""
    margins, labels = np.linspace(-1, 1, images, dtype=np.float32), np.arange(images) % classes
    with pytest.raises(DataError, match=message):
        open_set.threshold_for(margins, labels, rate)
    if rate == 0.01:
        more = np.append(margins, np.float32(-1)), np.append(labels, 0)
        assert open_set.threshold_for(*more, rate)[0] > -1


def test_choose() -> None:
    rows, labels = photographs(3, 40, seed=2)
    assert np.bincount(labels[open_set.choose(of(rows, labels))]).tolist() == [20, 20, 20]
    alone = of(rows[::40], labels[::40])  # no differences within classes
    assert np.isfinite(open_set.measure(alone, of(rows, labels + 3)).strangers).all()
