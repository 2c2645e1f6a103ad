"""MPN: how much the images of a batch influence the prediction of one of them.

The influence of image j on image i is |d log p_i(y_i) / d x_j|, the norm of the gradient of the log-probability that
the network assigns to the class of image i, with respect to the pixels of image j. In evaluation mode only message
passing connects the images.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.analysis import attention, drawing, retrieval
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import Finding
from dml_jax.backbones import functional
from dml_jax.methods import mpn
from dml_jax.methods.contract import Method, PyTree

ANCHORS, NEIGHBORS = 6, 8  # rows and columns of the figure

reason_not_to = attention.reason_not_to


def gradient_norms(
    method: Method,
    network: mpn.MessagePassingNetwork,
    params: PyTree,
    model_state: PyTree,
    images: jax.Array,
    labels: jax.Array,
    anchors: jax.Array,
) -> jax.Array:
    """Influence of every image of a batch on the predictions for some of them: float [A, B], per grey level.

    Images are uint8 [1, B, H, W, 3], labels int [B]; `anchors` int [A] are the positions of those that are explained.
    """
    stats = {"neck": model_state["neck"]}

    def log_probability(pixels: jax.Array, anchor: jax.Array) -> jax.Array:
        embeddings, _ = method.encode(params, model_state, pixels, train=False)
        (_, logits), _ = functional.apply(network, params["mpn"], stats, embeddings, False)
        return jax.nn.log_softmax(logits[anchor] / network.config.temperature)[labels[anchor]]

    pixels = images.astype(jnp.float32)
    gradient = jax.grad(log_probability)
    return jax.lax.map(lambda anchor: jnp.sqrt(jnp.sum(gradient(pixels, anchor)[0] ** 2, axis=(1, 2, 3))), anchors)


def mean_by_kind(norms: np.ndarray, anchors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Mean influence [A, B] of the image itself, of others of its class, and of those of other classes."""
    itself = np.arange(len(labels))[None, :] == anchors[:, None]
    same = (labels[None, :] == labels[anchors, None]) & ~itself
    kinds = {"the image itself": itself, "same class": same, "other classes": ~same & ~itself}
    return {name: float(norms[kind].mean()) for name, kind in kinds.items() if kind.any()}


def findings(run: EvaluatedModel, split: str) -> list[Finding]:
    """The most influential neighbours of some images, and means by kind, of the untrained network and of the model."""
    batch = run.training_batch
    labels = np.asarray(batch.labels)
    anchors = np.unique(labels, return_index=True)[1][:ANCHORS]  # one of each class
    network = mpn.MessagePassingNetwork(run.config.method, len(run.split("train").classes))
    compute = jax.jit(partial(gradient_norms, run.model.method, network))
    untrained = next(run.models())
    states = {"_untrained": untrained} if int(untrained.step) == 0 < run.step else {}
    found: list[Finding] = []
    means: dict[str, float] = {}
    for suffix, state in (states | {"": run.model}).items():
        which = " before training" if suffix else ""
        norms = np.asarray(
            compute(state.params, state.model_state, batch.images, batch.labels, jnp.asarray(anchors)), np.float64
        )
        means |= {f"{kind}{which}": mean for kind, mean in mean_by_kind(norms, anchors, labels).items()}
        found.append(neighbors(run, f"influence{suffix}", which, labels, anchors, norms))
    return [
        *reversed(found),
        Finding(
            "influence_means",
            "Mean influence of one image on the predicted log-probability of another: norm of the gradient with "
            "respect to its pixels (0 to 255).",
            partial(plot_means, means=means),
            ("influence_of", "mean_gradient_norm"),
            list(means.items()),
        ),
    ]


def neighbors(
    run: EvaluatedModel, name: str, which: str, labels: np.ndarray, anchors: np.ndarray, norms: np.ndarray
) -> Finding:
    """The most influential neighbours of some images; `norms` [A, B] as in `gradient_norms`."""
    classes = run.split("train").classes
    images = np.asarray(run.training_batch.images[0])
    return Finding(
        name,
        f"Images of a training batch (left column) and the other images that influence their predicted probability "
        f"most{which}. Below each: its share of the influence of all other images. Solid blue frames: same class; "
        "dashed orange frames: another class.",
        partial(plot_neighbors, images=images, labels=labels, anchors=anchors, norms=norms),
        ("image", "neighbor", "class", "class_of_neighbor", "gradient_norm"),
        [
            (int(anchor), neighbor, classes[labels[anchor]], classes[labels[neighbor]], float(norms[row, neighbor]))
            for row, anchor in enumerate(anchors)
            for neighbor in range(len(labels))
        ],
    )


def plot_neighbors(
    path: Path, *, images: np.ndarray, labels: np.ndarray, anchors: np.ndarray, norms: np.ndarray
) -> None:
    """Draws one row per anchor with its most influential neighbours."""
    rows, correct, below = [], [], []
    for anchor, influence in zip(anchors, norms, strict=True):
        others = influence.copy()
        others[anchor] = 0
        nearest = np.argsort(-others, kind="stable")[:NEIGHBORS]
        rows.append([images[anchor], *images[nearest]])
        correct.append([bool(labels[i] == labels[anchor]) for i in nearest])
        below.append([f"{share:.0%}" for share in others[nearest] / max(others.sum(), 1e-30)])
    retrieval.plot_retrieved_images(path, rows, correct, below=below, first="image")


def plot_means(path: Path, *, means: dict[str, float]) -> None:
    """Draws one bar per kind of neighbour."""
    figure = drawing.figure(6, 2.2)
    axes = drawing.style(figure.subplots())
    names = list(means)[::-1]
    bars = axes.barh(names, [means[name] for name in names], color=drawing.BLUE)
    axes.bar_label(bars, fmt="%.2g", fontsize=8, padding=3)
    axes.set(xlabel="mean gradient norm of log p (per grey level)", xscale="log")
    axes.margins(x=0.15)
    drawing.save(figure, path)
