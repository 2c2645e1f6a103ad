"""Retrieval among training classes compared with test classes, during training."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dml_jax.analysis import curves, drawing
from dml_jax.analysis.findings import Finding, Panel
from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.data.holdout import some_classes
from dml_jax.train.evaluation import embedding, split_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Training classes beside test classes"
METRICS = {"Recall@1": 2, "MAP@R": 3}  # their columns


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """Recall@1 and MAP@R of the untrained, the kept and the final model."""
    test = run.split("test")
    train = some_classes(run.split("train"), len(np.unique(test.labels)), len(test.labels))
    options, distance = run.config.evaluation, run.experiment.method.distance
    rows = []
    for state in run.models():
        run.console.print(f"evaluating training and test classes at step {int(state.step)}")
        for name, part in (("train", train), ("test", test)):
            embeddings = embedding.embed_with_gallery(run.embedder, state, name, part)
            found = split_metrics.metrics(
                options, distance, part, embeddings[name], embeddings.get("gallery"), cluster=False
            )
            rows.append((int(state.step), name, found["recall@1"], found["map@r"]))
    few = "" if run.kept_steps else " Set train.keep_every to see the steps between."
    return [
        Finding(
            "overfitting",
            "Retrieval among training classes and among the unseen test classes. The training classes and images are a "
            "sample no larger than the test split, so that both are about equally hard; training images are cropped as "
            f"for evaluation. A growing gap is overfitting to the training classes.{few}",
            partial(plot, rows=rows),
            ("step", "classes", "recall@1", "map@r"),
            rows,
            panel=Panel(partial(draw, rows=rows, metric="Recall@1"), "same axes"),
        )
    ]


def plot(path: Path, *, rows: list[tuple[int, str, float, float]]) -> None:
    """Draws one panel per metric with a line for training and one for test classes."""
    figure = drawing.figure(9, 3.3)
    for axes, metric in zip(figure.subplots(1, 2), METRICS, strict=True):
        draw(axes, rows=rows, metric=metric)
        axes.set(title=metric, ylabel="fraction")
        drawing.legend(axes)
    drawing.save(figure, path)


def draw(axes: "Axes", *, rows: list[tuple[int, str, float, float]], metric: str) -> None:
    """Draws a metric of training and of test classes in axes."""
    for name in ("train", "test"):
        i = curves.SPLITS.index(name)
        points = [(row[0], row[METRICS[metric]]) for row in rows if row[1] == name]
        drawing.style(axes).plot(
            *zip(*points, strict=True), color=drawing.SERIES[i], marker=drawing.MARKERS[i], markersize=4,
            label=f"{name} classes",
        )  # fmt: skip
    axes.set(xlabel="step", ylabel=metric, ylim=(0, 1.02))
