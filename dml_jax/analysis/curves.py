"""Curves over the training: terms of the loss, Recall@1 by split, and retrieval of training beside test classes."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax.analysis import drawing
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import Finding, Panel
from dml_jax.data.split import some_classes, with_gallery
from dml_jax.train import split_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = {"Recall@1": 2, "MAP@R": 3}  # their columns in the numbers of `findings`
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


def findings(run: EvaluatedModel, split: str) -> list[Finding]:
    """Recall@1 and MAP@R of the untrained, the kept and the final model."""
    test = run.split("test")
    train = some_classes(run.split("train"), len(np.unique(test.labels)), len(test.labels))
    options, distance = run.config.evaluation, run.model.method.distance
    rows = []
    for model in run.models():
        run.console.print(f"evaluating training and test classes at step {model.step}")
        for name, part in (("train", train), ("test", test)):
            parts = with_gallery({name: part})
            embeddings = {key: run.embedder.embed_split(model, images) for key, images in parts.items()}
            found = split_metrics.metrics(options, distance, part, embeddings, cluster=False)
            rows.append((model.step, name, found["recall@1"], found["map@r"]))
    few = "" if run.kept_steps else " Set train.keep_every to see the steps between."
    return [
        Finding(
            "overfitting",
            "Retrieval among training classes and among the unseen test classes. The training classes and images are a "
            "sample no larger than the test split, so that both are about equally hard; training images are cropped as "
            f"for evaluation. A growing gap is overfitting to the training classes.{few}",
            partial(plot_overfitting, rows=rows),
            ("step", "classes", "recall@1", "map@r"),
            rows,
            panel=Panel(partial(draw_metric, rows=rows, metric="Recall@1"), "same axes"),
        )
    ]


def plot_overfitting(path: Path, *, rows: list[tuple[int, str, float, float]]) -> None:
    """Draws one panel per metric with a line for training and one for test classes."""
    figure = drawing.figure(9, 3.3)
    for axes, metric in zip(figure.subplots(1, 2), METRICS, strict=True):
        draw_metric(axes, rows=rows, metric=metric)
        axes.set(title=metric, ylabel="fraction")
        drawing.legend(axes)
    drawing.save(figure, path)


def draw_metric(axes: "Axes", *, rows: list[tuple[int, str, float, float]], metric: str) -> None:
    """Draws a metric of training and of test classes in axes."""
    for name in ("train", "test"):
        i = SPLITS.index(name)
        points = [(row[0], row[METRICS[metric]]) for row in rows if row[1] == name]
        drawing.style(axes).plot(
            *zip(*points, strict=True), color=drawing.SERIES[i], marker=drawing.MARKERS[i], markersize=4,
            label=f"{name} classes",
        )  # fmt: skip
    axes.set(xlabel="step", ylabel=metric, ylim=(0, 1.02))
