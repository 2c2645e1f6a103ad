"""The rule of `train.select="folds"` on drawn classes: its regret on classes that it has not seen.

    python -m benchmarks.selection cars/ groceries/ [--draws=20] [--steps=100] --output=draws.jsonl
    python -m benchmarks.selection --read=draws.jsonl

Of each folder of classes, as many are drawn for training and as many others to be unseen. The
candidates are those of `train.selection`: published weights of EfficientNet-Lite0 at 128 pixels,
the layer in closed form, the network after training, and the mean of the last two. Only block 15,
the last convolution and the layer are trained, on stored outputs of block 14, so that a draw takes
seconds. Rules see the folds of the training classes; the regret is the difference from the best
candidate on the unseen classes in the mean of Recall@1 and MAP@R, in points.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.claims import heads
from configs import folder_baseline
from configs.folder_heads import LAST
from dml_jax.config import Config, Group, plugin_module, resolve
from dml_jax.data import formats
from dml_jax.data.split import Split, subset, take
from dml_jax.train import experiment as experiments
from dml_jax.train import loop, selection, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.selection import PUBLISHED
from dml_jax.train.step import TrainState

PART, SIDE = "blocks_14", 128
CLASSES, IMAGES = (10, 25, 50), 30  # training classes; images of each
LEAST = 4  # images of a class that takes part
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
    """The images of a folder, at most IMAGES of a class, and the outputs of PART for them."""

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
    kept = [rng.permutation(np.flatnonzero(whole.labels == c))[:IMAGES] for c in labels]
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


def draw(inputs: Stored, classes: int, seed: int, config: Config) -> dict[str, Any] | None:
    """Metrics of one draw by class: of the unseen ones, and of both folds; None if the folder has
    too few classes."""
    split = inputs.split
    if 2 * classes > len(split.classes):
        return None
    order = np.random.default_rng((seed, classes)).permutation(len(split.classes))
    config = replace(config, seed=seed)
    own, unseen = subset(split, order[:classes]), subset(split, order[classes : 2 * classes])
    halves = [subset(own, part) for part in np.array_split(np.arange(classes), 2)]
    half = replace(config, train=replace(config.train, steps=max(1, config.train.steps // 2)))
    folds = [measured(half, inputs, *pair) for pair in (halves, halves[::-1])]
    return {"folds": folds, "unseen": measured(config, inputs, own, unseen)}


def rules(draw: dict[str, Any]) -> dict[str, str]:
    """What each rule keeps."""
    both = {
        name: np.concatenate([np.mean(list(fold[name].values()), axis=0) for fold in draw["folds"]])
        for name in draw["unseen"]
    }
    first = len(draw["folds"][0][PUBLISHED]["map@r"])
    fifth = max(2, len(both[PUBLISHED]) // 5)
    found = {}
    for rule, count, margin in (
        ("two folds", None, 0.0),
        ("two folds, half a standard error", None, 0.5),
        ("two folds, one standard error", None, 1.0),
        ("one fold", first, 0.0),
        ("a fifth of the classes, half a standard error", fifth, 0.5),
    ):
        start = both[PUBLISHED][:count]
        gains = {name: selection.gain(values[:count], start) for name, values in both.items()}
        able = {name: g for name, g in gains.items() if g.mean >= margin * g.error}
        found[rule] = selection.best(able)
    return found | {f"always {name}": name for name in draw["unseen"]}


def show(lines: list[dict[str, Any]]) -> None:
    """Prints, by folder and number of classes, the candidates and the rules' gain and regret."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["folder"], line["classes"]].append(line)
    for (folder, classes), drawn in sorted(groups.items()):
        print(f"\n{folder}, {classes} training classes, {len(drawn)} draws")
        unseen = [
            {name: [100 * float(np.mean(x)) for x in v.values()] for name, v in d["unseen"].items()}
            for d in drawn
        ]
        for name in unseen[0]:
            print(
                "  {:12} Recall@1 {:.1f}  MAP@R {:.1f}".format(
                    name, *np.mean([each[name] for each in unseen], axis=0)
                )
            )
        chosen = [rules(each) for each in drawn]
        for rule in chosen[0]:
            got = np.array([each[pick[rule]] for each, pick in zip(unseen, chosen, strict=True)])
            start = np.array([each[PUBLISHED] for each in unseen])
            best = [max(np.mean(x) for x in each.values()) for each in unseen]
            regret = best - got.mean(axis=1)
            trained = np.mean([pick[rule] != PUBLISHED for pick in chosen])
            gain = (got - start).mean(axis=0)
            print(
                f"  {rule:45} gain {gain[0]:+.1f} / {gain[1]:+.1f}  regret {regret.mean():.2f} "
                f"(at most {regret.max():.1f})  published replaced {trained:.0%}"
            )


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("folders", nargs="*", type=Path)
    flags.add_argument("--draws", type=int, default=20)
    flags.add_argument("--steps", type=int, default=100)
    flags.add_argument("--cache", type=Path, default=Path("features"))
    flags.add_argument("--output", type=Path, default=Path("draws.jsonl"))
    flags.add_argument("--read", type=Path)
    options = flags.parse_args()
    if options.read:
        show([json.loads(line) for line in options.read.read_text().splitlines()])
        return
    config = configuration(options.steps)
    splits = {folder.name: stored(folder, config, options.cache) for folder in options.folders}
    with options.output.open("a", encoding="utf-8") as file:
        for seed in range(options.draws):
            for name, split in splits.items():
                for classes in CLASSES:
                    if (found := draw(split, classes, seed, config)) is None:
                        continue
                    line = {"folder": name, "classes": classes, "seed": seed, **found}
                    file.write(json.dumps(line, default=lambda x: x.tolist()) + "\n")
                    file.flush()
    show([json.loads(line) for line in options.output.read_text().splitlines()])


if __name__ == "__main__":
    main()
