"""Figures of MPN (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021) and of its reproduction, of a run:

    python -m benchmarks.papers.mpn runs/cars_mpn [--what attention influence batch]
        [--compare=runs/OTHER]

  attention     divergence from uniform, weight on the same class, one node's weights
  influence     images on whose pixels a prediction depends
  batch         map of a training batch, without and with message passing, and by another run

Attention: divergence from uniform, weight on the same class, and the weights of one node over the
checkpoints (Fig. 2 of the reproduction, [Re] MPN), on one training batch in evaluation mode. With
the authors' softmax, whose denominator has 1 added, rows sum to less than 1; here they are divided
by their sum.

The influence of image j on image i is |d log p_i(y_i) / d x_j|, the norm of the gradient of the
log-probability that the network assigns to the class of image i, with respect to the pixels of
image j. In evaluation mode only message passing connects the images.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.papers import runs
from dml_jax import drawing
from dml_jax.analysis import embedding_maps
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.retrieval import picture
from dml_jax.backbones import functional
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split, take
from dml_jax.drawing import Mark, Picture
from dml_jax.methods.contract import Batch, Method, PyTree
from dml_jax.methods.mpn.method import (
    AttentionStatistics,
    Config,
    MessagePassingNetwork,
    attention_statistics,
    batch_attention,
    normalise_rows,
    refine,
)

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

ANCHORS, NEIGHBORS = 6, 8  # rows and columns of the figure


def batch_rows(run: AnalysedModel, sampler: Sampler, number: int) -> np.ndarray:
    """The training images of a batch, by class: int [B]."""
    rows = np.asarray(sampler.batch(number))
    return rows[np.argsort(run.split("train").labels[rows], kind="stable")]


def training_batch(run: AnalysedModel, rows: np.ndarray) -> Batch:
    """A batch of training images, uint8 [1, B, H, W, 3] cropped as for evaluation."""
    images = jnp.asarray(runs.images(run, "train", rows)[None])
    labels = jnp.asarray(run.split("train").labels[rows], jnp.int32)
    return Batch(images, labels, jnp.asarray(rows, jnp.int32))


def attention(run: AnalysedModel, rows: np.ndarray, node: int) -> list[Finding]:
    """Statistics over training, and the weights of one node."""
    method, batch = run.model.method, training_batch(run, rows)
    network = MessagePassingNetwork(run.config.method, len(run.split("train").classes))
    compute = jax.jit(partial(batch_attention, method.encode, network))
    labels, steps, found, node_rows = np.asarray(batch.labels), [], [], []
    classes = run.split("train").classes
    for state in run.models():
        weights = normalise_rows(compute(state.params, state.model_state, batch.images))
        steps.append(state.step)
        found.append(attention_statistics(weights, labels))
        node_rows.append(weights[-1, :, node])  # last layer
    series = AttentionStatistics(*map(np.stack, zip(*found, strict=True)))  # [T, L, M]
    nodes = np.stack(node_rows, axis=1)  # [M, T, B]
    uniform = float((labels[:, None] == labels).mean())
    few = "" if run.config.train.keep_every else " Set train.keep_every to see its development."
    return [
        Finding(
            "attention",
            "Attention on a fixed training batch by layer and head. Left: divergence from uniform "
            "weights (0: every node attends to all others equally). Right: weight on nodes of the "
            f"same class; grey line: with uniform weights.{few}",
            partial(draw_statistics, steps=steps, series=series, uniform=uniform),
            by_column(
                ("step", "layer", "head", "kl_from_uniform_nats", "own_class_weight", "preference"),
                (
                    (step, layer + 1, head + 1, *(float(each[t, layer, head]) for each in series))
                    for t, step in enumerate(steps)
                    for layer, head in np.ndindex(*series.divergence.shape[1:])
                ),
            ),
            size=(9, 3.4),
        ),
        Finding(
            "attention_node",
            f"The nodes of this batch to which node {node}, of class {classes[labels[node]]}, "
            "attends (last layer, one panel per head), at several steps. Nodes of its class are "
            "between the lines. White is the uniform weight, "
            f"{1 / len(labels):.3f}; red is more, blue is less.",
            partial(draw_node, steps=steps, nodes=nodes, same=labels == labels[node]),
            by_column(
                ("step", "head", "node", "class", "weight"),
                (
                    (step, head + 1, other, classes[labels[other]], float(weight))
                    for head, by_step in enumerate(nodes)
                    for step, row in zip(steps, by_step, strict=True)
                    for other, weight in enumerate(row)
                ),
            ),
            size=(
                4.6 * min(len(nodes), 2) + 0.8,
                (1 + 0.24 * len(steps)) * -(-len(nodes) // 2) + 0.6,
            ),
        ),
    ]


def by_column(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The values of rows by the names of their columns."""
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def draw_statistics(
    figure: "FigureBase", *, steps: list[int], series: AttentionStatistics, uniform: float
) -> None:
    left, right = figure.subplots(1, 2)
    for axes, values in ((left, series.divergence), (right, series.same_class)):
        for layer, head in np.ndindex(*values.shape[1:]):
            axes.plot(
                steps,
                values[:, layer, head],
                color=drawing.SERIES[head % len(drawing.SERIES)],
                marker=drawing.MARKERS[head % len(drawing.MARKERS)],
                linestyle=("-", "--", ":", "-.")[layer % 4],
                markersize=4,
                linewidth=1.2,
                label=f"layer {layer + 1}, head {head + 1}",
            )
    right.axhline(uniform, color=drawing.GREY, linewidth=1, label="uniform")
    drawing.style(left).set(
        title="Divergence from uniform", xlabel="step", ylabel="KL divergence (nats)"
    )
    drawing.style(right).set(title="Attention to the same class", xlabel="step", ylabel="weight")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    drawing.legend(right, loc="center left", bbox_to_anchor=(1, 0.5))


def draw_node(
    figure: "FigureBase", *, steps: list[int], nodes: np.ndarray, same: np.ndarray
) -> None:
    """Draws weights [M, T, B], a panel per head, a row per model; `same` marks its class [B]."""
    from matplotlib.colors import TwoSlopeNorm

    heads, uniform = len(nodes), 1 / nodes.shape[-1]
    low, high = min(nodes.min(), 0.999 * uniform), max(nodes.max(), 1.001 * uniform)
    norm = TwoSlopeNorm(uniform, low, high)
    columns = min(heads, 2)
    rows = -(-heads // columns)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    edges = np.flatnonzero(np.diff(same, prepend=False, append=False)) - 0.5
    for head, (axes, weights) in enumerate(zip(panels, nodes, strict=False)):
        drawing.style(axes)
        image = axes.imshow(
            weights, aspect="auto", interpolation="nearest", cmap="RdBu_r", norm=norm
        )
        for edge in edges:
            axes.axvline(edge, color=drawing.INK, linewidth=1)
        axes.set(title=f"head {head + 1}", yticks=range(len(steps)), yticklabels=steps)
        axes.label_outer()
    for axes in panels[heads:]:
        axes.set_axis_off()
    figure.supxlabel("node of the batch, by class", fontsize=9)
    figure.supylabel("step", fontsize=9)
    figure.colorbar(image, ax=list(panels), label="attention weight")


def gradient_norms(
    method: Method,
    network: MessagePassingNetwork,
    params: PyTree,
    model_state: PyTree,
    images: Array,
    labels: Array,
    anchors: Array,
) -> Array:
    """Influence [A, B] of images uint8 [1, B, H, W, 3] on the predictions at `anchors` int [A]."""
    stats = {"neck": model_state["neck"]}

    def log_probability(pixels: Array, anchor: Array) -> Array:
        embeddings, _ = method.encode(params, model_state, pixels, train=False)
        (_, logits), _ = functional.apply(network, params["mpn"], stats, embeddings, False)
        return jax.nn.log_softmax(logits[anchor] / network.config.temperature)[labels[anchor]]

    def norms(anchor: Array) -> Array:
        gradient = jax.grad(log_probability)(images.astype(jnp.float32), anchor)
        return jnp.sqrt(jnp.sum(gradient[0] ** 2, axis=(1, 2, 3)))

    return jax.lax.map(norms, anchors)


def mean_by_kind(norms: np.ndarray, anchors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Mean influence [A, B] of the image itself, of its class, and of other classes."""
    itself = np.arange(len(labels))[None, :] == anchors[:, None]
    same = (labels[None, :] == labels[anchors, None]) & ~itself
    kinds = {"the image itself": itself, "same class": same, "other classes": ~same & ~itself}
    return {name: float(norms[kind].mean()) for name, kind in kinds.items() if kind.any()}


def influence(run: AnalysedModel, rows: np.ndarray) -> list[Finding]:
    """The most influential neighbours of some images, before training and of the model."""
    batch = training_batch(run, rows)
    labels = np.asarray(batch.labels)
    anchors = np.unique(labels, return_index=True)[1][:ANCHORS]  # one of each class
    network = MessagePassingNetwork(run.config.method, len(run.split("train").classes))
    compute = jax.jit(partial(gradient_norms, run.model.method, network))
    untrained = next(run.models())
    models = [("influence", "", run.model)]
    if int(untrained.step) == 0 < run.model.step:
        models.append(("influence_untrained", " before training", untrained))
    pictures, classes, found = take(run.split("train"), rows), run.split("train").classes, []
    for name, which, model in models:
        inputs = batch.images, batch.labels, jnp.asarray(anchors)
        norms = np.asarray(compute(model.params, model.model_state, *inputs), np.float64)
        kinds = mean_by_kind(norms, anchors, labels).items()
        means = ", ".join(f"{kind} {mean:.2g}" for kind, mean in kinds)
        strips = [strip(pictures, *pair) for pair in zip(anchors.tolist(), norms, strict=True)]
        finding = Finding(
            name,
            "Images of a training batch (left) and the other images that influence their predicted "
            f"probability most{which}. Below each: its share of the influence of all other images. "
            "Solid blue frames: same class; dashed orange frames: another class. Mean norms of the "
            f"gradient with respect to the pixels (0 to 255): {means}.",
            partial(drawing.draw_pictures, rows=strips),
            by_column(
                ("image", "neighbor", "class", "class_of_neighbor", "gradient_norm"),
                (
                    (anchor, other, classes[labels[anchor]], classes[labels[other]], float(norm))
                    for anchor, row in zip(anchors.tolist(), norms, strict=True)
                    for other, norm in enumerate(row)
                ),
            ),
            size=drawing.size_of_pictures(strips),
            pictures=[("", pictures) for pictures in strips],
        )
        found.append(finding)
    return found


def strip(batch: Split, anchor: int, influence: np.ndarray) -> list[Picture]:
    """An image and those with the most influence [B] on it."""
    others = influence.copy()
    others[anchor] = 0
    shown = [picture(batch, anchor, "query")]
    for i in np.argsort(-others, kind="stable")[:NEIGHBORS].tolist():
        mark: Mark = "right" if batch.labels[i] == batch.labels[anchor] else "wrong"
        shown.append(picture(batch, i, mark, f"{others[i] / max(others.sum(), 1e-30):.0%}"))
    return shown


def maps(models: Sequence[AnalysedModel], rows: np.ndarray) -> dict[str, list[Finding]]:
    """t-SNE of a batch by each model, and by the first after message passing."""
    plain = {
        each.directory.name: replace(each, splits={"batch": take(each.split("train"), rows)})
        for each in models
    }
    first, model = next(iter(plain.values())), models[0].model
    network = MessagePassingNetwork(model.config.method, len(model.class_names))
    given = jnp.asarray(first.embeddings("batch")), jnp.arange(len(rows))[None]
    refined = np.asarray(refine(model.params["mpn"], *given, network, len(rows))[0])
    shown = plain | {"refined": replace(first, known={"batch": refined})}
    return {
        name: [found._replace(name="batch") for found in embedding_maps.by_tsne(each, "batch")]
        for name, each in shown.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    flags = runs.parser(__doc__)
    names = "attention", "influence", "batch"
    flags.add_argument("--what", nargs="*", choices=names, default=names, help="default: all")
    flags.add_argument("--batch", type=int, default=0, help="number of the training batch")
    help_node = "position in the batch, by class, of the image whose attention is shown"
    flags.add_argument("--node", type=int, default=0, help=help_node)
    flags.add_argument("--compare", help="another run on the same data, for the map of the batch")
    options = flags.parse_args(arguments)
    experiment, run = runs.load(options.run, options)
    method = run.config.method
    if not isinstance(method, Config) or method.losses == "auxiliary":
        flags.error(f"{options.run}: was trained without a message passing network")
    rows = batch_rows(run, experiment.sampler, options.batch)
    if not 0 <= options.node < len(rows):
        flags.error(f"--node={options.node}: must be in 0 to {len(rows) - 1}")
    others = [runs.load(options.compare, options)[1]] if options.compare else []
    figures = {
        "attention": ("Attention of the network", lambda: {"": attention(run, rows, options.node)}),
        "influence": ("Influence of the batch on a prediction", lambda: {"": influence(run, rows)}),
        "batch": ("Embeddings of a training batch", lambda: maps([run, *others], rows)),
    }
    chosen = {name: figures[name] for name in options.what}
    runs.write(run, {name: (title, make()) for name, (title, make) in chosen.items()})


if __name__ == "__main__":
    main()
