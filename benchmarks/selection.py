"""The rule of `train.select="folds"` on random halves: its regret on classes that it has not seen.

    python -m benchmarks.selection cars/ groceries/ [--layers=40] [--networks=20]
    python -m benchmarks.selection --write    # the tables of RESULTS.md

From each folder, the same number of classes is drawn for training and for the test. Candidates are
those of `train.selection`, of EfficientNet-Lite0: with `--layers`, published weights at 224 pixels
and the layer in closed form; with `--networks`, also trained networks and mean weights, at 128
pixels, where block 15, the last convolution and the layer are trained on stored outputs of block
14, so that a draw takes seconds. A rule sees two folds of the training classes. Its regret is the
difference from the best candidate on the test classes in the mean of Recall@1 and MAP@R, in points.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dml_jax
from benchmarks import tables
from benchmarks.claims import heads
from configs import folder_baseline
from configs.folder_heads import LAST
from dml_jax.config import Config, Group, plugin_module, resolve
from dml_jax.data import formats
from dml_jax.data.split import Split, subset, take
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.methods import whitening
from dml_jax.train import experiment as experiments
from dml_jax.train import loop, selection, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.selection import PUBLISHED
from dml_jax.train.step import TrainState

PART, SIDE = "blocks_14", 128
CLASSES, IMAGES = (10, 25, 50), (30, 8)  # training classes; images of each
LEAST = 4  # images that a class must have to take part
CHUNK = 256  # images embedded at once


def configuration(steps: int) -> Config:
    """`folder_baseline` on stored maps."""
    config = resolve(folder_baseline.get_config().to_dict())
    groups = {"backbone": Group(0.0, freeze=True)}
    groups |= dict.fromkeys(LAST, config.train.groups["backbone"])
    groups |= {name: config.train.groups[name] for name in ("embedding", "loss")}
    data = replace(
        config.data, training_size=0, image_size=SIDE, resize=SIDE * 8 // 7, path="", name="folder"
    )
    train = replace(config.train, groups=groups, steps=steps, select="last")
    return replace(config, data=data, train=train)


class Stored(NamedTuple):
    """The images of a folder, at most 30 of a class, and the outputs of PART for them."""

    split: Split
    maps: np.ndarray  # float16 [N, h, w, K]

    def of(self, split: Split) -> np.ndarray:
        """The maps of some of the images."""
        row = {name: i for i, name in enumerate(self.split.ids)}
        return self.maps[[row[name] for name in split.ids]]


def stored(folder: Path, config: Config, cache: Path) -> Stored:
    """The maps of a folder of classes, read from `cache` or computed once."""
    whole = formats.load_labelled(folder, config.data)["test"]
    rng = np.random.default_rng(0)
    labels = range(len(whole.classes))
    kept = [rng.permutation(np.flatnonzero(whole.labels == c))[: IMAGES[0]] for c in labels]
    split = take(whole, np.concatenate([rows for rows in kept if len(rows) >= LEAST]))
    split = subset(split, np.unique(split.labels))
    file = cache / f"{folder.name}-{PART}-{SIDE}.npy"
    if not file.exists():
        experiment = experiments.build(config, {"train": split, "test": split})
        network = plugin_module("backbone", config.backbone.name).build(config.backbone)
        variables = network.init(jax.random.key(0), experiment.shape)

        def compute(params: Any, stats: Any, images: jax.Array) -> jax.Array:
            return heads._outputs(network, (params, stats), images)[PART]

        state = TrainState(jnp.zeros((), jnp.int32), *variables, ())
        rows = experiment.embedder(compute).embed_split(state, split)
        cache.mkdir(parents=True, exist_ok=True)
        np.save(file, rows.astype(np.float16))
    blank = np.zeros((SIDE, SIDE, 3), np.uint8)  # only the maps are looked at
    return Stored(split._replace(read=lambda index, rng: blank), np.load(file))


def trained(experiment: Experiment) -> tuple[TrainState, TrainState]:
    """The states before the first and after the last step."""
    key = jax.random.fold_in(experiment.key, 2**31 - 1)
    drawn = step.initial(experiment.method, experiment.optimizer, key, experiment.example_batch())
    start = device_mesh.place(experiment.mesh, drawn)
    first = loop.refreshed(experiment, None, start, lambda done: None)
    kept = jax.tree.map(np.array, first)
    leaves, structure = jax.tree.flatten(first)
    update = experiment.jitted_step(first)
    placed = device_mesh.place(experiment.mesh, experiment.key)
    with experiment.batches(0, experiment.steps) as batches:
        for _ in range(experiment.steps):
            leaves, _ = update(leaves, experiment.device_batch(*next(batches)), placed)
    return kept, jax.tree.unflatten(structure, leaves)


def measured(config: Config, inputs: Stored, train: Split, test: Split) -> selection.Measured:
    """The candidates, trained on one split, on each class of another."""
    backbone = heads.Stored(config.backbone.channels, config.backbone, PART)
    batch = min(config.data.batch_size, config.data.images_per_class * len(train.classes))
    config = replace(config, backbone=backbone, data=replace(config.data, batch_size=batch))
    made = experiments.build(config, {"train": train, "test": test})
    features = inputs.of(train)[:, None].astype(np.float32)
    experiment = made._replace(features=features, augment=lambda maps, key: maps)
    states = selection.candidates(experiment, *trained(experiment))
    embed, points = jax.jit(experiment.method.embed), inputs.of(test)
    rows = {}
    for name, state in states.items():
        parts = []
        for start in range(0, len(points), CHUNK):
            padded = np.zeros((CHUNK, *points.shape[1:]), np.float32)
            part = points[start : start + CHUNK]
            padded[: len(part)] = part
            parts.append(np.asarray(embed(state.params, state.model_state, padded))[: len(part)])
        rows[name] = np.concatenate(parts)
    return selection._metrics(experiment, test, rows)


def with_networks(inputs: Stored, classes: int, seed: int, config: Config) -> dict[str, Any] | None:
    """One draw of networks; None if the folder has too few classes."""
    split = inputs.split
    if 2 * classes > len(split.classes):
        return None
    order = np.random.default_rng((seed, classes)).permutation(len(split.classes))
    config = replace(config, seed=seed)
    own, unseen = subset(split, order[:classes]), subset(split, order[classes : 2 * classes])
    halves = [subset(own, part) for part in np.array_split(np.arange(classes), 2)]
    half = replace(config, train=replace(config.train, steps=max(1, config.train.steps // 2)))
    folds = [measured(half, inputs, *pair) for pair in (halves, halves[::-1])]
    tested = measured(config, inputs, own, unseen)
    return {
        "unseen": {name: np.mean(list(v.values()), axis=1).tolist() for name, v in tested.items()},
        "folds": {
            name: np.hstack([list(fold[name].values()) for fold in folds]).T.tolist()
            for name in tested
        },
    }


class Rows(NamedTuple):
    """Published embeddings of a folder, float32 [N, D], rows of unit length, and classes [N]."""

    values: np.ndarray
    labels: np.ndarray


def embedded(folder: Path, cache: Path) -> Rows:
    """The published embeddings of a folder of classes, read from `cache` or computed once."""
    file = cache / f"{folder.name}-lite0.npz"
    if not file.exists():
        classes = formats.class_folders([str(folder)])
        paths = [str(image) for images in classes.values() for image in images]
        labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, values=dml_jax.load("lite0").embed(paths), labels=labels)
    with np.load(file) as found:
        return Rows(found["values"], found["labels"])


def layer(rows: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """`whitening.within_classes` but for its scale, from the eigenvectors of fewer rows."""
    x = rows.astype(np.float64)
    means = np.stack([x[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
    within = x - means[labels]
    values, axes = np.linalg.eigh(within @ within.T / len(x))
    shrinkage = whitening.SHRINKAGE * values.sum() / x.shape[1]
    kept = values > 1e-9 * values.max()
    values, axes = values[kept], within.T @ axes[:, kept] / np.sqrt(len(x) * values[kept])
    rest = shrinkage**-0.5
    scales = (values + shrinkage) ** -0.5 - rest

    def project(given: np.ndarray) -> np.ndarray:
        centred = given - x.mean(axis=0)
        return centred * rest + (centred @ axes) * scales @ axes.T

    return project


def by_class(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Recall@1 and MAP@R of each class, float [C, 2]."""
    units = unit_rows(rows.astype(np.float32))
    similar = units @ units.T
    np.fill_diagonal(similar, -9)
    relevant = np.bincount(labels)[labels] - 1
    order = np.argsort(-similar, axis=1, kind="stable")[:, : relevant.max()]
    hits = labels[order] == labels[:, None]
    ranks = np.arange(1, relevant.max() + 1)
    precision = np.where(ranks <= relevant[:, None], hits * hits.cumsum(axis=1) / ranks, 0)
    both = np.stack([hits[:, 0], precision.sum(axis=1) / np.maximum(relevant, 1)], axis=1)
    return np.stack([both[labels == c].mean(axis=0) for c in range(labels.max() + 1)])


def of_layer(inputs: Rows, classes: int, images: int, seed: int) -> dict[str, Any] | None:
    """One draw of published weights and the layer; None if the folder has too few classes."""
    rng = np.random.default_rng([seed, classes, images])
    counts = np.bincount(inputs.labels)
    order = [c for c in rng.permutation(len(counts)) if counts[c] >= LEAST]
    if 2 * classes > len(order):
        return None

    def taken(chosen: list[int]) -> Rows:
        parts = [rng.permutation(np.flatnonzero(inputs.labels == c))[:images] for c in chosen]
        numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return Rows(inputs.values[np.concatenate(parts)], numbers)

    own, unseen = taken(order[:classes]), taken(order[classes : 2 * classes])

    def candidates(train: Rows, test: Rows) -> dict[str, np.ndarray]:
        project = layer(*train)
        return {
            selection.PUBLISHED: by_class(*test),
            selection.LAYER: by_class(project(test.values), test.labels),
        }

    folds = {name: np.zeros((classes, 2)) for name in (selection.PUBLISHED, selection.LAYER)}
    for part in np.array_split(rng.permutation(classes), 2):
        held = np.isin(own.labels, part)
        halves = [
            Rows(own.values[chosen], np.unique(own.labels[chosen], return_inverse=True)[1])
            for chosen in (~held, held)
        ]
        for name, values in candidates(*halves).items():
            folds[name][np.sort(part)] = values
    tested = candidates(own, unseen)
    return {
        "unseen": {name: values.mean(axis=0).tolist() for name, values in tested.items()},
        "folds": {name: values.tolist() for name, values in folds.items()},
    }


MARGINS = (-1.0, -0.5, 0.0, selection.MARGIN)


def kept(draw: dict[str, Any], margin: float) -> str:
    """What the folds choose with a margin of `selection.best`."""
    scores = {name: np.mean(values, axis=1) for name, values in draw["folds"].items()}
    gains = {name: selection.gain(x, scores[PUBLISHED]) for name, x in scores.items()}
    return selection.best(gains, margin)


def outcome(draws: Sequence[dict[str, Any]], chosen: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Gains over published weights in both metrics [n, 2] and regrets [n], in points."""
    points = [{name: 100 * np.array(v) for name, v in draw["unseen"].items()} for draw in draws]
    both = list(zip(points, chosen, strict=True))
    gains = np.stack([each[name] - each[PUBLISHED] for each, name in both])
    best = [max(value.mean() for value in each.values()) for each in points]
    return gains, np.array(best) - np.array([each[name].mean() for each, name in both])


def row(name: str, draws: Sequence[dict[str, Any]]) -> list[str]:
    """A row of the tables: each candidate, what is kept, and the regrets."""
    always = [outcome(draws, [each] * len(draws))[0].mean(axis=0) for each in draws[0]["unseen"]]
    cells = [f"{recall:+.1f} / {precision:+.1f}" for recall, precision in always[1:]]
    chosen = [outcome(draws, [kept(draw, margin) for draw in draws]) for margin in MARGINS]
    recall, precision = chosen[-1][0].mean(axis=0)
    regrets = [f"{regret.mean():.2f}" for _, regret in chosen]
    return [name, str(len(draws)), *cells, f"{recall:+.1f} / {precision:+.1f}", *regrets]


def write(draws: Sequence[dict[str, Any]]) -> None:
    """Stores the tables of both kinds of draws."""
    for kind in ("layers", "networks"):
        groups = defaultdict(list)
        for draw in (each for each in draws if each["kind"] == kind):
            groups[draw["folder"], draw["classes"], draw["images"]].append(draw)
        rows = [
            row(f"{folder}, {classes} classes of {images}", group)
            for (folder, classes, images), group in sorted(groups.items())
        ]
        rows.append(row("all", [draw for group in groups.values() for draw in group]))
        names = [n for n in next(iter(groups.values()))[0]["unseen"] if n != PUBLISHED]
        head = ["", "draws", *names, "kept", *(f"regret at {margin:g}" for margin in MARGINS)]
        command = "python -m benchmarks.selection cars/ groceries/"
        tables.write(f"selection_{kind}", command, head, rows)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("folders", nargs="*", type=Path)
    flags.add_argument("--layers", type=int, default=40)
    flags.add_argument("--networks", type=int, default=20)
    flags.add_argument("--steps", type=int, default=100)
    flags.add_argument("--cache", type=Path, default=Path("features"))
    flags.add_argument("--output", type=Path, default=Path("draws.jsonl"))
    flags.add_argument("--write", action="store_true")
    options = flags.parse_args()
    if options.write:
        write([json.loads(line) for line in options.output.read_text().splitlines()])
        return
    with options.output.open("a", encoding="utf-8") as file:

        def keep(found: dict[str, Any] | None, **facts: Any) -> None:
            if found:
                print(json.dumps(facts | found), file=file, flush=True)

        for folder in options.folders:
            facts: dict[str, Any] = {"folder": folder.name}
            rows = embedded(folder, options.cache) if options.layers else None
            for seed, count, images in product(range(options.layers), CLASSES, IMAGES):
                more = {"kind": "layers", "classes": count, "images": images, "seed": seed}
                keep(of_layer(rows, count, images, seed), **facts, **more)
        config = configuration(options.steps)
        inputs = {}
        if options.networks:
            inputs = {each.name: stored(each, config, options.cache) for each in options.folders}
        for seed, (name, one), count in product(range(options.networks), inputs.items(), CLASSES):
            more = {"folder": name, "classes": count, "images": IMAGES[0], "seed": seed}
            keep(with_networks(one, count, seed, config), kind="networks", **more)


if __name__ == "__main__":
    main()
