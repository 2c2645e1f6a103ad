"""Heads on stored feature maps of a frozen backbone: many trials in one process, each in seconds.

    python -m dml_jax.lab.head_bench TRIALS.json

TRIALS.json names a directory for the maps and lists trials, each by the file of its configuration
and its work directory. Maps are computed once, in half precision: all images as in evaluation,
training images also as random crops. All else is as in any run; a finished trial leaves
`config.json` and `results.json`, and an interrupted one starts again.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import files
from dml_jax.backbones.contract import Backbone, Pixels
from dml_jax.backbones.functional import pooled_cells
from dml_jax.config import Config, plugin_module
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.data import relations, samplers
from dml_jax.data.split import Split
from dml_jax.errors import DivergedError, UserError
from dml_jax.evaluation import geometry
from dml_jax.methods.contract import PyTree
from dml_jax.train import experiment as experiments
from dml_jax.train import frozen_features, model_metrics, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import logs, workdir
from dml_jax.train.step import TrainState

CHUNK = 256  # images embedded at once


class Maps(NamedTuple):
    """The maps of the images of a split."""

    rows: dict[str, int]  # row of an image by its name
    values: np.ndarray  # float16 [N, views, h, w, K]
    cells: np.ndarray  # float32 [N, views, 1, 2, K], with the same mean and maximum

    def of(self, ids: Sequence[str], *, whole: bool) -> np.ndarray:
        """The maps of some images, or their cells."""
        return (self.values if whole else self.cells)[[self.rows[name] for name in ids]]


@dataclass(frozen=True)
class Stored:
    """Configuration of a backbone without parameters, whose inputs are stored maps."""

    channels: int
    name: str = "dml_jax.lab.head_bench"
    pretrained: str = "none"
    pixels: Pixels = field(default_factory=Pixels)


def build(config: Stored) -> Backbone:
    """A backbone that returns its inputs."""

    def apply(params: PyTree, stats: PyTree, maps: jax.Array, **_: Any) -> tuple[jax.Array, PyTree]:
        return maps, stats

    return Backbone(lambda key, shape: ({}, {}), apply, config.channels, lambda maps: maps)


class HeadInputs(NamedTuple):
    """Shared by all heads on the same data and backbone."""

    maps: dict[str, Maps]  # by split
    splits: dict[str, Split]
    data_hash: str


def head_inputs(config: Config, directory: Path, console: Console) -> HeadInputs:
    """The maps of the images of both splits, read from a directory or computed once."""
    data = replace(config.data, validation_share=0.0)
    train = replace(config.train, select="last")
    experiment = experiments.build(replace(config, data=data, train=train, seed=0))
    network = plugin_module("backbone", config.backbone.name).build(config.backbone)
    variables = network.init(jax.random.key(0), experiment.shape)
    key = frozen_features.key(experiment, variables)

    def compute(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        maps = network.apply(params, model_state, network.preprocess(images), train=False)[0]
        return maps.astype(jnp.float16)

    embedder, pooled = experiment.embedder(compute), jax.jit(pooled_cells)
    state = TrainState(jnp.zeros((), jnp.int32), variables[0], variables[1], ())
    found = {}
    for name, split in experiment.splits.items():
        console.print(f"maps of the frozen backbone: {name}")
        count, file = config.train.feature_views if name == "train" else 1, f"{key}-{name}"
        values = frozen_features.views(
            embedder, state, split, count, directory / file, dtype=np.float16
        )
        views = np.moveaxis(values, 1, 0)
        cells = [np.asarray(pooled(jnp.asarray(view, jnp.float32))) for view in views]
        rows = {image: i for i, image in enumerate(split.ids)}
        found[name] = Maps(rows, values, np.stack(cells, axis=1))
    return HeadInputs(found, experiment.splits, experiment.data_hash)


class Head:
    """A head of one configuration, compiled once for all seeds."""

    def __init__(self, config: Config, inputs: HeadInputs):
        maps = inputs.maps
        # The network itself would only be compiled and carried along.
        backbone = Stored(maps["train"].values.shape[-1])
        stored = replace(config, backbone=backbone, train=replace(config.train, feature_views=0))
        self.experiment = experiment = experiments.build(stored, dict(inputs.splits))
        whole = experiment.method.hooks.whole_maps
        self.features = maps["train"].of(experiment.splits["train"].ids, whole=whole)
        self.tested = "validation" if config.train.select == "validation" else "test"
        tested = maps["train" if self.tested == "validation" else "test"]
        self.points = tested.of(experiment.splits[self.tested].ids, whole=whole)[:, 0]
        self.embed = jax.jit(experiment.method.embed)
        as_floats = experiment._replace(augment=lambda maps, key: maps.astype(jnp.float32))
        self.update = as_floats.jitted_step(experiment.template())

    def trained(self, seed: int) -> tuple[Experiment, TrainState]:
        """The state after training with a seed."""
        config = replace(self.experiment.config, seed=seed)
        train, data = self.experiment.splits["train"], config.data
        relation = relations.between_classes(data.relation, train.classes)
        sampler = samplers.build(data, train.labels, seed, relation)
        experiment = self.experiment._replace(
            config=config, sampler=sampler, features=self.features
        )
        key = jax.random.fold_in(experiment.key, 2**31 - 1)
        batch = experiment.example_batch()
        state = step.initial(experiment.method, experiment.optimizer, key, batch)
        # Placed where steps leave it, so that only one step is compiled.
        state = experiment.filled(device_mesh.place(experiment.mesh, state))
        leaves, structure = jax.tree.flatten(state)
        with experiment.batches(0, experiment.steps) as batches:
            for _ in range(experiment.steps):
                batch = experiment.device_batch(*next(batches))
                leaves, metrics = self.update(leaves, batch, experiment.key)
        if not np.isfinite(float(metrics["loss"])):
            raise DivergedError("training diverged")
        return experiment, jax.tree.unflatten(structure, leaves)

    def embedded(self, state: TrainState) -> np.ndarray:
        """The embeddings float32 [N, D] of the tested images."""
        rows = []
        for start in range(0, len(self.points), CHUNK):
            part = self.points[start : start + CHUNK]
            padded = np.zeros((CHUNK, *part.shape[1:]), np.float32)
            padded[: len(part)] = part
            rows.append(np.asarray(self.embed(state.params, state.model_state, padded)))
        return np.concatenate(rows)[: len(self.points)]

    def results(self, seed: int, console: Console) -> tuple[dict[str, Any], np.ndarray]:
        """The contents of `results.json` and the embeddings of the tested images."""
        began = time.monotonic()
        experiment, state = self.trained(seed)
        seconds = time.monotonic() - began
        rows = self.embedded(state)
        results = measured(experiment, rows, self.tested)
        if experiment.config.evaluation.refine:
            results["refined"] = model_metrics.refined(experiment, state, {"test": rows}, console)
        if (diagnose := experiment.method.hooks.diagnose) is not None:
            with experiment.batches(0, 1) as batches:
                images, labels, _ = next(batches)
            maps = jnp.asarray(images, jnp.float32)
            results |= diagnose(state.params, state.model_state, maps, labels)
        train = experiment.config.train
        return results | {
            "protocol": model_metrics.protocol_of(experiment, self.tested),
            "length": {"steps": train.steps, "epochs": train.epochs},
            "step": int(state.step),
            "model": train.select,
            "timing": {"seconds": seconds},
            "machine": logs.machine(),
        }, rows


def measured(experiment: Experiment, rows: np.ndarray, tested: str) -> dict[str, Any]:
    """Retrieval, NMI and geometry of embeddings float32 [N, D]."""
    config, split = experiment.config, experiment.splits[tested]
    splits, embeddings, distance = {"test": split}, {"test": rows}, experiment.method.distance
    cluster = config.evaluation.cluster
    found = model_metrics.metrics(config, distance, splits, embeddings, cluster=cluster)
    return found | {
        "density": geometry.density(rows, split.labels),
        "spectral_decay": geometry.spectral_decay(rows),
    }


class Bench:
    """Trains heads one after the other, reusing what successive heads share."""

    def __init__(self, directory: Path):
        self.directory, self.console = directory, Console(quiet=True)
        self.code = workdir.source_digest()
        self.inputs: dict[str, HeadInputs] = {}
        self.head: Head | None = None
        self.common = ""  # configuration of the head without its seed

    def prepare(self, config: Config) -> tuple[HeadInputs, Head]:
        """The maps for a configuration, and its head, compiled once for successive seeds."""
        key = repr((config.data.path, config.backbone, config.train.feature_views))
        if key not in self.inputs:
            self.inputs[key] = head_inputs(config, self.directory, self.console)
        common = repr(replace(config, seed=0, name="", paper={}))
        if self.head is None or common != self.common:
            self.head, self.common = Head(config, self.inputs[key]), common
        return self.inputs[key], self.head

    def run(self, trial: dict[str, Any]) -> str:
        """Trains a trial or evaluates an ensemble, writes its files, and says the result."""
        config = config_files.resolved(trial["config"], {}, trust_code=True)
        directory = Path(trial["directory"])
        inputs, head = self.prepare(config)
        if trial["members"]:
            rows = ensemble([Path(member) for member in trial["members"]], trial["weights"])
            results = measured(head.experiment, rows, head.tested)
        else:
            results, rows = head.results(config.seed, self.console)
        directory.mkdir(parents=True, exist_ok=True)
        split, shape = head.experiment.splits["train"], head.experiment.shape
        images = len(split.labels)
        facts = workdir.provenance(config, inputs.data_hash, split.classes, images, shape)
        files.write_json(directory / "config.json", facts | {"code": self.code})
        with files.atomic_write(directory / "embeddings.npy") as draft, draft.open("wb") as file:
            np.save(file, rows.astype(np.float16))
        files.write_json(directory / "results.json", results)
        return f"R@1 {100 * results['recall@1']:.1f}  MAP@R {100 * results['map@r']:.1f}"


def main(path: Path) -> int:
    """Trains the unfinished trials of a file; returns 1 if some fail."""
    given = json.loads(path.read_text(encoding="utf-8"))
    bench, code, count = Bench(Path(given["maps"])), 0, len(given["trials"])
    for number, trial in enumerate(given["trials"], start=1):
        directory = Path(trial["directory"])
        if (directory / "results.json").exists():
            continue
        try:
            result = bench.run(trial)
        except (UserError, FileNotFoundError) as error:  # the others may still decide their claims
            result, code = f"failed: {error}", 1
        name = f"{directory.parent.name}/{directory.name}"
        print(f"{number} of {count}  {name}: {result}", flush=True)
    return code


def ensemble(members: Sequence[Path], weights: Sequence[float]) -> np.ndarray:
    """The weighted embeddings of finished trials side by side, each of unit length."""
    rows = [np.load(member / "embeddings.npy").astype(np.float32) for member in members]
    rows = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in rows]
    factors = weights or [1.0] * len(rows)
    return np.hstack([factor * part for factor, part in zip(factors, rows, strict=True)])


if __name__ == "__main__":
    from dml_jax.lab import head_bench  # the module that `Stored` names, once

    sys.exit(head_bench.main(Path(sys.argv[1])))
