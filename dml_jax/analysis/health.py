"""Training health over the steps, from `metrics.jsonl`: distances, effective rank, gradient, proxies."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dml_jax.analysis import drawing
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.train.records.diagnostics import PREFIX, QUANTILES

TITLE = "Health of the training"
# Axis label of each curve, in the order of the panels.
CURVES = {
    "effective_rank": "effective rank",
    "grad_norm": "norm of the gradient",
    "proxy_drift": "drift of the proxies per step",
}


def reason_not_to(run: TrainedRun) -> str:
    """Why the analysis does not apply to a run; empty if it does."""
    return "" if series(run.metrics()) else "metrics.jsonl has no health values; the run is of an earlier version"


def series(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Step, gradient norm and health values, without their prefix, of the lines that have them."""
    rank = f"{PREFIX}effective_rank"
    return [
        {"step": line["step"], "grad_norm": line["grad_norm"]}
        | {name.removeprefix(PREFIX): value for name, value in line.items() if name.startswith(PREFIX)}
        for line in lines
        if rank in line
    ]


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """All measurements over the steps."""
    lines = run.metrics()
    points = series(lines)
    columns = list(dict.fromkeys(name for point in points for name in point))
    warnings = [f"step {line['step']}: {text}" for line in lines for text in line.get("warnings", {}).values()]
    summary = f" Warnings: {len(warnings)}, the first at {warnings[0]}." if warnings else " No warnings."
    return [
        Finding(
            "health",
            "Measured on training batches, embedded as at test time. Distances: medians of the pairs of a batch, with "
            f"the range from the {QUANTILES[0]} % to the {QUANTILES[-1]} % quantile.{summary}",
            partial(plot, points=points),
            columns,
            [[point.get(name, "") for name in columns] for point in points],
        )
    ]


def plot(path: Path, *, points: list[dict[str, Any]]) -> None:
    """Draws the distances, then one panel per curve that the run has."""
    curves = [name for name in CURVES if name in points[-1]]
    figure = drawing.figure(9, 2.9 * -(-(1 + len(curves)) // 2))
    panels = figure.subplots(-(-(1 + len(curves)) // 2), 2, squeeze=False).ravel()
    kinds = (("same", "same class", drawing.BLUE, "-"), ("different", "different classes", drawing.ORANGE, "--"))
    for kind, label, colour, line in kinds:
        having = [point for point in points if f"{kind}_p50" in point]
        steps = [point["step"] for point in having]
        low, middle, high = ([point[f"{kind}_p{q}"] for point in having] for q in QUANTILES)
        drawing.style(panels[0]).plot(steps, middle, color=colour, linestyle=line, label=label)
        panels[0].fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    panels[0].set(xlabel="step", ylabel="Euclidean distance", ylim=(0, None))
    drawing.legend(panels[0])
    for axes, name in zip(panels[1:], curves, strict=False):
        values = [(point["step"], point[name]) for point in points if name in point]
        drawing.style(axes).plot(*zip(*values, strict=True), color=drawing.INK, linewidth=1.2)
        axes.set(xlabel="step", ylabel=CURVES[name], ylim=(0, None))
    for axes in panels[1 + len(curves) :]:
        axes.remove()
    drawing.save(figure, path)
