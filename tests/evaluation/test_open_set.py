"""The margin against loops in float64, and its promised rates on classes that it was not measured on."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import Background, Scorer

D = 12


def photographs(classes: int, images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 of classes that differ in all directions, their images mostly in the first three."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    spread = np.where(np.arange(D) < 3, 1.0, 0.3)
    rows = rng.standard_normal((classes, D))[labels] + spread * rng.standard_normal((len(labels), D))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


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
    return best, own[best] - 0.05 * np.log(np.sum(np.exp(np.array(others) / 0.05)))


def test_margins_against_loops() -> None:
    rows, labels = photographs(9, 5, seed=0)
    background = Background(rows[labels > 5], labels[labels > 5])
    enrolled, queries = (labels < 6) & (np.arange(45) % 5 > 1), (labels < 6) & (np.arange(45) % 5 < 2)
    scorer = Scorer(background, rows[enrolled], labels[enrolled])
    found = scorer.decide(rows[queries])
    for i, query in enumerate(rows[queries]):
        label, margin = by_loops(query, rows[enrolled], labels[enrolled], background)
        assert found.labels[i] == label
        assert found.margins[i] == pytest.approx(margin, abs=1e-5)


@pytest.mark.parametrize(("classes", "images"), [(10, 5), (30, 2)])
def test_the_rates_are_met_on_other_classes(classes, images) -> None:
    """Strangers accepted, and held-out images right, wrong and unknown, against those of 400 new classes."""
    accepted, shares, measured = [], [], []
    for seed in range(6):
        rows, labels = photographs(500, 12, seed)
        place = np.arange(len(rows)) % 12
        background = open_set.choose(rows[labels >= 450], labels[labels >= 450])
        kept, asked = (labels < classes) & (place < images), (labels < classes) & (place >= images)
        index = background, rows[kept], labels[kept]
        strangers = open_set.of_strangers(*index)
        point = open_set.point(strangers, *open_set.hold_out(*index), 0.1)
        assert point.strangers == pytest.approx(0.1, abs=2 / len(strangers))
        assert point.right + point.wrong + point.unknown == pytest.approx(1)
        scorer = Scorer(*index)
        accepted.append((scorer.decide(rows[(labels >= classes) & (labels < 450)]).margins >= point.threshold).mean())
        found = scorer.decide(rows[asked])
        named = found.margins >= point.threshold
        shares.append([(named & (found.labels == labels[asked])).mean(), (~named).mean()])
        measured.append([point.right, point.unknown])
    # 600 images of 50 classes each time: about 0.02 each, correlated within classes.
    assert np.mean(accepted) == pytest.approx(0.1, abs=0.02)
    # The index holds one image fewer than when it is used, so its own images do a little worse.
    held_right, held_unknown = np.mean(measured, axis=0)
    right, unknown = np.mean(shares, axis=0)
    assert right - 0.2 < held_right < right + 0.05
    assert unknown - 0.05 < held_unknown < unknown + 0.2


def test_no_image_decides_how_it_is_judged() -> None:
    """Margins of held-out images and of strangers, against an index and a background without them."""
    rows, labels = photographs(12, 4, seed=3)
    background = Background(rows[labels > 5], labels[labels > 5])
    index = (labels < 6) & ((labels == 0) | (np.arange(48) % 4 == 0))  # four images of class 0, one of each other
    enrolled, classes = rows[index], labels[index]
    found, _ = open_set.hold_out(background, enrolled, classes)
    alone = [np.arange(len(enrolled)) != i for i in np.flatnonzero(classes == 0)]
    known = [by_loops(enrolled[~kept][0], enrolled[kept], classes[kept], background)[1] for kept in alone]
    np.testing.assert_allclose(np.sort(found), np.sort(known), atol=1e-5)
    strangers = open_set.of_strangers(background, enrolled, classes)
    for row, label, margin in zip(*background, strangers, strict=True):
        rest = Background(*(part[background.labels != label] for part in background))
        assert margin == pytest.approx(by_loops(row, enrolled, classes, rest)[1], abs=1e-5)


def test_the_order_of_classes_does_not_matter() -> None:
    rows, labels = photographs(40, 13, seed=4)
    background = Background(rows[labels >= 25], labels[labels >= 25])
    enrolled, classes = rows[labels < 25], labels[labels < 25]
    order = np.argsort((classes + 7) % 25, kind="stable")
    found, right = open_set.hold_out(background, enrolled, classes)
    again, right_again = open_set.hold_out(background, enrolled[order], (classes[order] + 7) % 25)
    np.testing.assert_allclose(np.sort(again), np.sort(found), atol=1e-5)
    assert right.sum() == right_again.sum()


def test_choose() -> None:
    rows, labels = photographs(3, 40, seed=2)
    chosen = open_set.choose(rows, labels)
    assert np.bincount(chosen.labels).tolist() == [20, 20, 20]
    for row, label in zip(*chosen, strict=True):
        assert label == labels[(rows == row).all(axis=1)][0]
    alone = open_set.choose(rows[::40], labels[::40])  # no differences within classes
    assert np.isfinite(open_set.of_strangers(alone, rows, labels)).all()


def test_rates() -> None:
    for rate in (0, 1, -0.5, float("nan")):
        with pytest.raises(DataError, match=r"false_accept_rate=.*must be above 0 and below 1"):
            open_set.check_rate(rate)
