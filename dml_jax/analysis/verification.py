"""Verification of image pairs, same class or not: error rates by cosine threshold, the ROC curve, thresholds."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dml_jax.analysis import drawing, views
from dml_jax.analysis.drawing import BLUE, GREY, INK, ORANGE
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import Finding
from dml_jax.errors import DataError
from dml_jax.evaluation import geometry
from dml_jax.evaluation.geometry import Verification

TARGETS = (0.1, 0.03, 0.01, 0.003, 0.001)  # false accept rates


def reason_not_to(run: EvaluatedModel) -> str:
    """Why the analysis does not apply to a run; empty if it does."""
    return "" if run.split("test").gallery is None else "its queries search a separate gallery"


def transferred(chosen_on: Verification, applied_to: Verification, targets: Sequence[float]) -> list[tuple[float, ...]]:
    """Thresholds chosen on some pairs and applied to others; both are measured at the same thresholds.

    For each target, the lowest cosine threshold that keeps this false accept rate on the former: (target, threshold,
    false accepts and false rejects of the latter).
    """
    columns = (applied_to.thresholds, applied_to.false_accepts, applied_to.false_rejects)
    return [(target, *(float(column[chosen_on.lowest(target)]) for column in columns)) for target in targets]


def findings(run: EvaluatedModel, split: str) -> list[Finding]:
    """Error rates of the pairs within a split; pairs with a gallery are not included."""
    try:
        rates = geometry.sample_rates(run.embeddings(split), run.split(split).labels)
    except DataError as error:
        run.console.print(f"verification: skipped ({error})")
        return []
    chosen = transferred(rates, rates, TARGETS)
    cells = [(target, (f"{cosine:.3f}", cosine), accepts, rejects) for target, cosine, accepts, rejects in chosen]
    return [
        Finding(
            "errors",
            f"Two images of the split '{split}' are accepted as the same class if their cosine reaches a threshold. "
            "Left: error rates over the threshold; they are equal, "
            f"{rates.equal_error_rate:.1%}, at {rates.threshold:.3f}. Right: the ROC curve; the dotted diagonal is "
            "chance. Table: thresholds for some rates of false accepts.",
            partial(plot, rates=rates),
            ("target_false_accepts", "cosine_threshold", "false_accepts", "false_rejects"),
            chosen,
            views.listing(("at most", "cosine threshold", "false accepts", "false rejects"), cells),
        )
    ]


def plot(path: Path, *, rates: Verification) -> None:
    """Draws false accept and false reject rates over the threshold, and the ROC curve."""
    figure = drawing.figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    accepts, rejects = rates.false_accepts, rates.false_rejects
    drawing.style(left).plot(rates.thresholds, accepts, color=ORANGE, linestyle="--", label="false accepts")
    left.plot(rates.thresholds, rejects, color=BLUE, label="false rejects")
    error, cosine = rates.equal_error_rate, rates.threshold
    left.axvline(cosine, color=GREY, linestyle=":", linewidth=1, label=f"equal at {cosine:.3f}")
    left.set(title="Errors over the threshold", xlabel="cosine threshold", ylabel="rate", ylim=(0, 1.02))
    drawing.legend(left)
    drawing.style(right).plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1, label="chance")
    right.plot(accepts, 1 - rejects, color=BLUE, label="these embeddings")
    right.plot(error, 1 - error, "o", color=INK, markersize=5, label=f"equal error rate {error:.1%}", linestyle="none")
    right.set(title="ROC curve", xlabel="false accept rate", ylabel="true accept rate", ylim=(0, 1.02), xlim=(0, 1))
    drawing.legend(right, loc="lower right")
    drawing.save(figure, path)
