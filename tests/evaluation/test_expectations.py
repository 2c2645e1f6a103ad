"""Expected shares on classes and sessions that they were not measured on."""

import math

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import expectations, open_set
from dml_jax.evaluation.expectations import expected
from dml_jax.evaluation.open_set import ANSWERS, Measured
from tests.evaluation.test_open_set import in_sessions


def measured_of(margins: np.ndarray, classes: np.ndarray, known: np.ndarray, ranks: np.ndarray) -> Measured:
    """Strangers with these margins and known images with these probabilities, each of its class."""
    answers, strangers = np.zeros(len(known), ANSWERS), np.zeros(len(margins), ANSWERS)
    answers["margin"] = answers["probability"] = known
    answers["rank"], answers["label"] = ranks, np.arange(len(known))
    strangers["margin"], strangers["label"] = margins, classes
    return Measured(answers, strangers, np.array(1.0))


def test_expectations_hold_on_other_classes_and_sessions() -> None:
    """Limits, shares and probabilities, over six draws."""
    held, accepted, expected_right, cautious, gaps = [], [], [], [], []
    for seed in range(6):
        taken = in_sessions(60, 4, seed)
        first = taken.sessions != "2"
        enrolled = taken.where((taken.labels < 12) & first)
        others = taken.where(taken.labels >= 40)
        others = others._replace(labels=others.labels - 28)
        both = open_set.Photographs(*map(np.concatenate, zip(enrolled, others, strict=True)))
        measured = open_set.measure(both, 12, np.arange(12, 32))
        point, always = expected(measured, 0.1), expected(measured)
        classifier, known = open_set.fit(both.rows, both.labels), np.arange(32) < 12
        asked = taken.where((taken.labels < 12) & ~first)
        scores = classifier.scores(asked.rows)
        best, margins = open_set.margins(scores, known)
        right = best == asked.labels
        held.append(always.right[1] <= right.mean() <= always.right[2])
        expected_right.append(always.right[0] - right.mean())
        cautious.append(point.right[0] - (right & (margins >= point.limit)).mean())
        strangers = taken.rows[(taken.labels >= 12) & (taken.labels < 40)]
        scores_of = classifier.scores(strangers)
        accepted.append((open_set.margins(scores_of, known)[1] >= point.limit).mean())
        shares = open_set.probabilities(scores, known, float(measured.temperature))
        gaps.append(shares.max(axis=1).mean() - right.mean())
    assert sum(held) >= 4  # the interval leaves out that the asked images are a sample as well
    assert np.mean(accepted) == pytest.approx(0.1, abs=0.05)
    assert abs(np.mean(expected_right)) < 0.1
    assert np.mean(cautious) < 0  # the classifiers that are measured have a session less
    assert abs(np.mean(gaps)) < 0.1


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.33])
def test_at_most_the_rate_of_the_strangers_is_accepted(rate: float) -> None:
    """With one more, it would be more; the interval is Wilson's for as many classes."""
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(10), 12)
    margins = (rng.standard_normal(10)[classes] + rng.standard_normal(120)).astype(np.float32)
    point = expected(measured_of(margins, classes, np.zeros(0), np.zeros(0, int)), rate)
    accepted = margins >= point.limit
    assert accepted.sum() == math.floor(rate * 120 + 1e-9)
    assert point.limit > margins[~accepted].max()
    assert point.strangers_accepted == expectations.wilson(accepted, 10)
    assert math.isnan(point.right[0])


def test_shares_with_each_choice() -> None:
    """20 images of as many classes, by probability and rank of the right class."""
    shares = np.repeat([0.3, 0.6, 0.8, 0.95], 5)
    ranks = np.array([0, 1, 2, 3, 3] + [0, 0, 1, 1, 5] + [0, 0, 0, 0, 2] + [0] * 5)
    strangers = np.linspace(-1, 0.7, 60), np.arange(60) % 6
    measured = measured_of(*strangers, shares, ranks)
    always, least = (expected(measured, min_probability=p) for p in (None, 0.6))
    assert (always.right[0], always.right_at_3[0], always.wrong[0]) == (12 / 20, 17 / 20, 8 / 20)
    assert (always.unknown, always.strangers_accepted) == ((0, 0, 0), (1, 1, 1))
    assert (least.right[0], least.right_at_3[0], least.wrong[0]) == (11 / 20, 14 / 20, 4 / 20)
    assert (least.unknown[0], least.strangers_accepted[0]) == (5 / 20, 0)
    assert least.strangers_accepted[2] == pytest.approx(1.96**2 / 6 / (1 + 1.96**2 / 6))  # Wilson's
    # The interval holds the shares p with |11 / 20 - p| <= 1.96 sqrt(p (1 - p) / 20).
    for end in least.right[1:]:
        assert abs(11 / 20 - end) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / 20))


@pytest.mark.parametrize(("images", "classes", "rate"), [(40, 4, 0.05), (99, 6, 0.01), (0, 0, 0.5)])
def test_too_few_strangers(images: int, classes: int, rate: float) -> None:
    """They must be of five classes, and so many that one more than the share is a whole one."""
    strangers = np.linspace(-1, 1, images), np.arange(images) % max(1, classes)
    measured = measured_of(*strangers, np.zeros(0), np.zeros(0, int))
    given = f"reject={rate:g}: {images} images of {classes} classes are too few strangers; give "
    needed = f"5 other classes or more, {round(1 / rate):,} images"
    with pytest.raises(DataError, match=f"{given}--calibrate=DIRECTORY .* {needed}"):
        expected(measured, rate)
    if rate == 0.01:
        more = np.append(strangers[0], -1), np.append(strangers[1], 0)
        enough = measured_of(*more, np.zeros(0), np.zeros(0, int))
        assert expected(enough, rate).limit > -1
