"""Enrolled classes: right answers at given rates of accepted strangers, and how often expectations
hold.

    python -m benchmarks.answers photos/ --session='^(train|val|test)_' --asked=test [--draws=12]

Published weights embed a folder of classes, of which a random third is enrolled, another third are
other classes, and the rest are strangers. The images of the session --asked are classified; without
it, all images beyond the first 20 of each class.
"""

import argparse

import numpy as np

import dml_jax
from dml_jax.data import formats, sessions
from dml_jax.data.sources import Options
from dml_jax.evaluation import open_set
from dml_jax.evaluation.expectations import expected
from dml_jax.evaluation.open_set import Photographs

RATES = 0.05, 0.1, 0.2, 0.3


def draw(taken: Photographs, asked: np.ndarray, seed: int, *, calibrate: bool) -> list[float]:
    """Results of one draw: the share of right answers, without a limit and at each of RATES of the
    strangers asked; the share of expectations that hold; the mean probability minus the share of
    right answers."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(taken.labels.max() + 1)
    position = np.argsort(order)[taken.labels]
    count = len(order) // 3
    rank = rng.permutation(len(position))
    kept = np.zeros(len(position), bool)
    for label in range(2 * count if calibrate else count):
        own = np.flatnonzero((position == label) & ~asked)
        kept[own[np.argsort(rank[own])][:20]] = True
    enrolled = taken._replace(labels=position).where(kept)
    classes = enrolled.labels.max() + 1
    playing = np.arange(count, classes) if calibrate else np.arange(count)
    measured = open_set.measure(enrolled, count, playing)
    classifier = open_set.fit(enrolled.rows, enrolled.labels)
    candidates = np.arange(classes) < count
    tested = ~kept & (asked if asked.any() else True)
    known, strangers = tested & (position < count), tested & (position >= 2 * count)
    scores = classifier.scores(taken.rows[known])
    best, margins = open_set.margins(scores, candidates)
    right = best == position[known]
    others = open_set.margins(classifier.scores(taken.rows[strangers]), candidates)[1]
    limits = [np.quantile(others, 1 - rate) for rate in RATES]
    held = 0
    for rate in (None, *RATES):
        point = expected(measured, rate)
        accepted = margins >= point.limit
        for share, (_, low, high) in (
            ((right & accepted).mean(), point.right),
            ((~right & accepted).mean(), point.wrong),
            ((others >= point.limit).mean(), point.strangers_accepted),
        ):
            held += low <= share <= high
    shares = open_set.probabilities(scores, candidates, float(measured.temperature)).max(axis=1)
    at = [(right & (margins > limit)).mean() for limit in limits]
    return [right.mean(), *at, held / 15, shares.mean() - right.mean()]


def main() -> None:
    """Embeds the images and prints the mean of all draws, with other classes and without."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("folder")
    flags.add_argument("--model", default="lite0")
    flags.add_argument("--session", default="")
    flags.add_argument("--asked", default="")
    flags.add_argument("--draws", type=int, default=12)
    options = flags.parse_args()
    classes = formats.class_folders([options.folder], Options(session=options.session))
    files = [file for images in classes.values() for file in images]
    labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
    taken, _ = sessions.sessions_by_file([classes], options.session, print)
    names = np.array([taken[file] for file in files], np.str_)
    photographs = Photographs(dml_jax.load(options.model).embed(files), labels, names)
    asked = (names == options.asked) & (options.asked != "")
    print(
        "in %: right; right at 5, 10, 20, 30 % of strangers; expectations met; probability - right"
    )
    for calibrate in (True, False):
        draws = [draw(photographs, asked, i, calibrate=calibrate) for i in range(options.draws)]
        text = "  ".join(f"{100 * value:.1f}" for value in np.mean(draws, axis=0))
        print("with other classes:" if calibrate else "without:", text)


if __name__ == "__main__":
    main()
