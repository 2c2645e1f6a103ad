"""Curves over training: terms of the loss, and Recall@1 of training and test classes."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax import drawing
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import Finding
from dml_jax.data.split import some_classes, with_gallery
from dml_jax.train import model_metrics

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

Points = list[tuple[int, float]]  # (step, value)

# Splits differ in colour and marker, controls in line style.
LABELS = {"test": "test classes", "validation": "validation classes", "train": "training classes"}
LINES = (":", "-.", (0, (1, 4)), (0, (5, 3)))


def training(lines: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> list[Finding]:
    """The loss and Recall@1 of a run, from the lines of `metrics.jsonl`."""
    terms, recall = loss_terms(lines), recalls(lines, results)
    controls = {name: numbers["recall@1"] for name, numbers in results.get("controls", {}).items()}
    return [
        Finding(
            "loss",
            "The training loss and its terms.",
            partial(draw_loss, terms=terms),
            _columns(terms, "term", "value"),
        ),
        Finding(
            "recall",
            "Recall@1 during training. Training classes: a random sample of at most 2,000 images, "
            "with no more classes than the other splits. Horizontal lines: controls on the test "
            "classes.",
            partial(draw_recall, recall=recall, controls=controls),
            _columns(recall, "split", "recall@1"),
        ),
    ]


def _columns(curves: Mapping[str, Points], kind: str, value: str) -> dict[str, list[Any]]:
    rows = [(name, *point) for name, points in curves.items() for point in points]
    return {key: [row[i] for row in rows] for i, key in enumerate((kind, "step", value))}


def loss_terms(lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """The loss and each of its terms."""
    names = dict.fromkeys(name for line in lines for name in line if name.startswith("loss"))
    return {name: [(line["step"], line[name]) for line in lines if name in line] for name in names}


def recalls(lines: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> dict[str, Points]:
    """Recall@1 of each evaluated split; for the test split, at least the final result."""
    curves = {}
    for name in LABELS:
        values = ((line["step"], line.get(f"{name}/recall@1")) for line in lines)
        curves[name] = [(step, value) for step, value in values if value is not None]
    curves["test"] = curves["test"] or [(results["step"], results["recall@1"])]
    return {name: points for name, points in curves.items() if points}


def draw_loss(figure: "FigureBase", *, terms: Mapping[str, Points]) -> None:
    """Draws one line per term; the total loss has the text colour."""
    axes, colours = figure.subplots(), (drawing.INK, *drawing.SERIES[:-1])
    for i, (name, points) in enumerate(terms.items()):
        label, every = name.removeprefix("loss_").replace("_", " "), max(1, len(points) // 6)
        appearance: dict[str, Any] = {"color": colours[i % len(colours)], "markevery": every}
        drawing.line(axes, points, i, label=label, linewidth=1.1 if i else 1.6, **appearance)
    lowest = min(0, axes.get_ylim()[0])
    axes.set(title="Training loss", xlabel="step", ylabel="loss", ylim=(lowest, None))
    drawing.legend(axes)


def draw_recall(
    figure: "FigureBase",
    *,
    recall: Mapping[str, Points],
    controls: Mapping[str, float] | None = None,
) -> None:
    """Draws one line per split, and a horizontal line per control."""
    axes = drawing.style(figure.subplots())
    for name, points in recall.items():
        percent = [(step, 100 * value) for step, value in points]
        drawing.line(axes, percent, list(LABELS).index(name), label=LABELS[name])
    for i, (name, value) in enumerate((controls or {}).items()):
        colour, line = drawing.SERIES[3 + i % 3], LINES[i % len(LINES)]
        axes.axhline(100 * value, color=colour, linestyle=line, linewidth=1.5, label=name)
    axes.set(title="Recall@1", xlabel="step", ylabel="Recall@1, %", ylim=(0, 101))
    axes.set_xlim(left=0)
    drawing.legend(axes)


def overfitting(run: AnalysedModel, split: str) -> list[Finding]:
    """Recall@1 of the untrained model and of checkpoints, on training and on test classes."""
    test = run.split("test")
    train = some_classes(run.split("train"), len(np.unique(test.labels)), len(test.labels))
    distance = run.model.method.distance
    recall: dict[str, Points] = {"train": [], "test": []}
    for model in run.models():
        run.console.print(f"evaluating training and test classes at step {model.step}")
        for name, parts in (("train", {"train": train}), ("test", with_gallery(run.splits))):
            embed = partial(run.embedder.embed_split, model)
            embeddings = {key: embed(images) for key, images in parts.items()}
            metrics = model_metrics.metrics(run.config, distance, parts, embeddings, cluster=False)
            recall[name].append((model.step, metrics["recall@1"]))
    hint = "" if run.config.train.keep_every else " Set train.keep_every to see more steps."
    return [
        Finding(
            "overfitting",
            "Recall@1 on training classes and on the unseen test classes. The training classes and "
            "images are a sample no larger than the test split, so that both are about equally "
            "hard; training images are cropped as for evaluation. A growing gap is overfitting to "
            f"the training classes.{hint}",
            partial(draw_recall, recall=recall),
            _columns(recall, "classes", "recall@1"),
            same_axes=True,
        )
    ]
