"""Training curves: every term of the loss, and Recall@1 of training, validation and test classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dml_jax.analysis import drawing

# Splits differ in colour and marker, controls in line style.
SPLITS = ("test", "validation", "train")
LABELS = {"train": "training classes", "validation": "validation classes", "test": "test classes"}
LINES = (":", "-.", (0, (1, 4)), (0, (5, 3)))


def loss_terms(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """(step, value) points of the loss and of each of its terms."""
    names = dict.fromkeys(name for line in lines for name in line if name.startswith("loss"))
    return {name: [(line["step"], line[name]) for line in lines if name in line] for name in names}


def recalls(lines: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """(step, Recall@1) points of each evaluated split; of the test split at least the final result."""
    found = {
        name: [(line["step"], line[f"{name}/recall@1"]) for line in lines if f"{name}/recall@1" in line]
        for name in SPLITS
    }
    if not found["test"]:
        found["test"] = [(results["step"], results["recall@1"])]
    return {name: points for name, points in found.items() if points}


def plot_loss(path: Path, terms: Mapping[str, list[tuple[int, float]]]) -> None:
    """Draws one line per term; the total loss has the colour of the text."""
    figure = drawing.figure(5, 3.4)
    axes = drawing.style(figure.subplots())
    colours = (drawing.INK, *drawing.SERIES[:-1])
    for i, (name, points) in enumerate(terms.items()):
        label = "loss" if name == "loss" else name.removeprefix("loss_").replace("_", " ")
        axes.plot(
            *zip(*points, strict=True), color=colours[i % len(colours)], linewidth=1.6 if i == 0 else 1.1, label=label,
            marker=drawing.MARKERS[i % len(drawing.MARKERS)], markersize=4, markevery=max(1, len(points) // 6),
        )  # fmt: skip
    axes.set(title="Training loss", xlabel="step", ylabel="loss", ylim=(min(0, axes.get_ylim()[0]), None))
    if len(terms) > 1:
        drawing.legend(axes)
    drawing.save(figure, path)


def plot_recall(path: Path, recall: Mapping[str, list[tuple[int, float]]], controls: Mapping[str, float]) -> None:
    """Draws one line per split, and a horizontal line per control."""
    figure = drawing.figure(5, 3.4)
    axes = drawing.style(figure.subplots())
    for name, points in recall.items():
        i = SPLITS.index(name)
        steps, values = zip(*points, strict=True)
        percent = [100 * value for value in values]
        axes.plot(
            steps, percent, color=drawing.SERIES[i], marker=drawing.MARKERS[i], markersize=4.5, label=LABELS[name]
        )
    for i, (name, value) in enumerate(controls.items()):
        colour = drawing.SERIES[3 + i % 3]
        axes.axhline(100 * value, color=colour, linestyle=LINES[i % len(LINES)], linewidth=1.5, label=name)
    axes.set(title="Recall@1", xlabel="step", ylabel="Recall@1, %", ylim=(0, 101))
    axes.set_xlim(left=0)
    drawing.legend(axes)
    drawing.save(figure, path)
