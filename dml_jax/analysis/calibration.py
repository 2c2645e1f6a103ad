"""Whether a cosine threshold keeps its false accept rate on classes other than those it was chosen on.

A threshold for "same class" is chosen for a target rate on some classes and applied to a disjoint half of the test
classes.
"""

from functools import partial
from pathlib import Path

import numpy as np

from dml_jax.analysis import drawing
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.analysis.verification import transferred
from dml_jax.errors import DataError
from dml_jax.evaluation import verification
from dml_jax.evaluation.verification import Verification

TITLE = "Calibration of thresholds"
TARGETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # false accept rates
MOST = 5000  # images of each split whose pairs are compared


def reason_not_to(run: TrainedRun) -> str:
    """Why the analysis does not apply to a run; empty if it does."""
    found = len(np.unique(run.split("test").labels))
    return "" if found >= 4 else f"the test split has {found} classes, and each half needs two"


def halves(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a random half of the classes, and rows of the others."""
    classes = np.random.default_rng(0).permutation(np.unique(labels))
    first = np.isin(labels, classes[: len(classes) // 2])
    return np.flatnonzero(first), np.flatnonzero(~first)


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """Applies thresholds from training classes and from half of the test classes to the other half."""
    rng = np.random.default_rng(0)

    def rates(name: str, rows: np.ndarray) -> Verification:
        rows = rng.permutation(rows)[:MOST]
        return verification.error_rates(run.embeddings(name)[rows], run.split(name).labels[rows])

    first, second = halves(run.split("test").labels)
    try:
        applied_to = rates("test", second)
        sources = {
            "training classes": rates("train", np.arange(len(run.split("train").labels))),
            "other test classes": rates("test", first),
        }
    except DataError as error:
        run.console.print(f"calibration: skipped ({error})")
        return []
    found = {name: transferred(source, applied_to, TARGETS) for name, source in sources.items()}
    return [
        Finding(
            "calibration",
            "A cosine threshold for 'same class' is chosen for a false accept rate on some classes and applied to the "
            "second half of the test classes. Left: the rate measured there; the dotted line is the target, and rates "
            "of 0 are not drawn. Right: the rate of false rejects.",
            partial(plot, found=found),
            ("chosen_on", "target_false_accepts", "cosine_threshold", "false_accepts", "false_rejects"),
            [(name, *entry) for name, entries in found.items() for entry in entries],
        )
    ]


def plot(path: Path, *, found: dict[str, list[tuple[float, ...]]]) -> None:
    """Draws measured false accepts, and false rejects, over target rates."""
    figure = drawing.figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    left.plot(TARGETS, TARGETS, color=drawing.GREY, linestyle=":", label="target")
    for i, (name, entries) in enumerate(found.items()):
        look = {"color": drawing.SERIES[i], "marker": drawing.MARKERS[i], "label": f"chosen on {name}"}
        left.plot(TARGETS, [accepts or np.nan for _, _, accepts, _ in entries], **look)
        right.plot(TARGETS, [rejects for *_, rejects in entries], **look)
    drawing.style(left).set(xscale="log", yscale="log", title="False accepts", ylabel="rate on unseen classes")
    drawing.style(right).set(xscale="log", title="False rejects", ylabel="rate on unseen classes", ylim=(0, 1.02))
    for axes in (left, right):
        axes.set_xlabel("target rate of false accepts")
    drawing.legend(left)
    drawing.save(figure, path)
