"""Heads on stored feature maps of a frozen backbone: many trials in one process, each in seconds.

Maps are computed once, in half precision: all images as in evaluation, and those that some trial
trains on also as random crops. Where upper parts of the backbone are trained, such as its last
stage, the maps are the outputs of the part below them. All else is as in any run. A finished trial
leaves `config.json` and `results.json`, and an interrupted one starts again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from dml_jax import files
from dml_jax.analysis import labelled_embeddings
from dml_jax.backbones.contract import Backbone, Pixels
from dml_jax.backbones.functional import pooled_cells
from dml_jax.config import Config, plugin_module
from dml_jax.console import Console
from dml_jax.data import arrays, relations, samplers
from dml_jax.data import split as splitting
from dml_jax.data.arrays import Shape
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError, DivergedError, UserError
from dml_jax.evaluation import geometry
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.lab import runner
from dml_jax.lab.plan import Trial
from dml_jax.methods.contract import PyTree
from dml_jax.train import experiment as experiments
from dml_jax.train import frozen_features, model_metrics, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import logs, workdir
from dml_jax.train.step import TrainState

CHUNK = 256  # images embedded at once
SIDE = 32  # pixels of images of which only the number matters
# Options of the data on which neither images nor their maps depend.
OF_BATCHES: Any = {"sampler": "shuffled", "batch_size": 2, "images_per_class": 1, "relation": ""}


class Maps(NamedTuple):
    """The maps of all images, which are read from their files where they are needed."""

    # By image: its maps float16 [h, w, K] are `values[split][view][row]`.
    places: dict[str, tuple[str, int]]  # split and row
    values: dict[str, list[np.ndarray]]
    cells: dict[str, list[np.ndarray]]  # float32 [N, 1, 2, K], with the same mean and maximum

    def of(self, ids: Sequence[str], views: int, *, whole: bool) -> np.ndarray:
        """The maps [N, views, h, w, K] of some images, or their cells."""
        stored = self.values if whole else self.cells
        example = stored["train"][0]
        found = np.empty((len(ids), views, *example.shape[1:]), example.dtype)
        for i, (split, row) in enumerate(self.places[name] for name in ids):
            for view in range(views):
                found[i, view] = stored[split][view][row]
        return found


@dataclass(frozen=True)
class Stored:
    """Configuration of a backbone whose inputs are stored maps, the outputs of `part`.

    Without a part, they are those of the whole network, and the backbone has no parameters.
    """

    channels: int
    network: Any  # configuration of the whole one
    part: str = ""
    name: str = "benchmarks.claims.heads"
    pretrained: str = "none"
    pixels: Pixels = field(default_factory=Pixels)


def build(config: Stored) -> Backbone:
    """A backbone that returns its inputs, or what the network makes of the outputs of a part."""

    def apply(
        params: PyTree, stats: PyTree, maps: jax.Array, **options: Any
    ) -> tuple[jax.Array, PyTree]:
        if not config.part:
            return maps, stats
        # Nothing depends on these images, so that the parts below are not compiled.
        images = jnp.zeros((len(maps), SIDE, SIDE, 3))
        return _with_output(network, config.part, maps)(params, stats, images, **options)

    network = plugin_module("backbone", config.network.name).build(config.network)

    def init(key: jax.Array, shape: Shape) -> tuple[PyTree, PyTree]:
        return network.init(key, (SIDE, SIDE)) if config.part else ({}, {})

    return Backbone(init, apply, config.channels, lambda maps: maps)


def _with_output(network: Backbone, part: str, maps: jax.Array) -> Callable[..., Any]:
    """`network.apply`, with these outputs of a part."""

    def replaced(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        return maps if context.module.path == (part,) else call(*args, **kwargs)

    def apply(*arguments: Any, **options: Any) -> Any:
        with nn.intercept_methods(replaced):
            return network.apply(*arguments, **options)

    return apply


def _outputs(network: Backbone, variables: Any, images: jax.Array) -> dict[str, Any]:
    """The outputs of the network's parts by name, in their order; "" is that of the whole one."""
    found: dict[str, Any] = {}

    def recorded(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        output = call(*args, **kwargs)
        if len(context.module.path) == 1:
            found[context.module.name] = output
        return output

    with nn.intercept_methods(recorded):
        whole = network.apply(*variables, network.preprocess(images), train=False)[0]
    return found | {"": whole}


def last_frozen(experiment: Experiment, network: Backbone, variables: Any) -> str:
    """The part of the network below those that are trained; empty if none of them is.

    ConfigError if the trained ones need more than its output.
    """
    groups, group_of = experiment.config.train.groups, experiment.method.group
    paths = flatten_dict({"backbone": variables[0]})
    trained = {path[1] for path in paths if not groups[group_of(path)].freeze}
    if not trained:
        return ""
    error = ConfigError(
        f"train.feature_views={experiment.config.train.feature_views}: what is trained of the "
        f"backbone, {', '.join(sorted(trained))}, needs more than the output of the part below; "
        "set it to 0, or freeze the backbone"
    )
    images, names = arrays.random(experiment.shape, 1), list[str]()

    def both(variables: Any, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = _outputs(network, variables, images)
        names.extend(outputs)
        if not trained <= outputs.keys():  # such as a class token, which no part has
            raise error
        part = names[max(min(map(names.index, trained)) - 1, 0)]
        names[:] = [part]
        small = network.preprocess(images[:, :SIDE, :SIDE])
        above = _with_output(network, part, outputs[part])(*variables, small, train=False)[0]
        return outputs[""], above

    try:
        whole, above = jax.jit(both)(variables, images)
    except flax.errors.ScopeParamShapeError:  # of a network for images of one size
        raise error from None
    if names[0] in trained or whole.shape != above.shape or not np.allclose(whole, above):
        raise error
    return names[0]


class HeadInputs(NamedTuple):
    """Shared by all heads on the same data and backbone."""

    maps: Maps
    splits: dict[str, Split]  # with data.class_split=0
    part: str  # of the backbone, whose outputs the maps are; empty: the whole one
    network: Backbone
    variables: Any  # of the network before training


def head_inputs(config: Config, console: Console) -> HeadInputs:
    """The maps of the images of both splits, read from `train.features` or computed once."""
    data = replace(config.data, validation_share=0.0, class_split=0)
    train = replace(config.train, select="last")
    whole = replace(config, data=data, train=replace(train, feature_views=0), seed=0)
    experiment = experiments.build(whole)._replace(config=replace(whole, train=train))
    network = plugin_module("backbone", config.backbone.name).build(config.backbone)
    variables = network.init(jax.random.key(0), experiment.shape)
    part = last_frozen(experiment, network, variables)
    key = frozen_features.key(experiment, variables) + (f"-{part}" if part else "")

    def compute(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        maps: jax.Array = _outputs(network, (params, model_state), images)[part]
        return maps.astype(jnp.float16)

    embedder, pooled = experiment.embedder(compute), jax.jit(pooled_cells)
    state = TrainState(jnp.zeros((), jnp.int32), variables[0], variables[1], ())
    found = Maps({}, {}, {})
    for name, split in experiment.splits.items():
        console.print(f"maps of the frozen backbone: {name}")
        trained = name == "train" or config.data.class_split
        count = config.train.feature_views if trained else 1
        stem = Path(config.train.features) / f"{key}-maps-{name}"
        views = frozen_features.views(embedder, state, split, count, stem, dtype=np.float16)
        found.values[name] = views
        found.cells[name] = []
        for number, view in enumerate([] if part else views):
            file = stem.with_name(f"{stem.name}-{number}-cells.npy")
            if not file.exists():
                starts = range(0, len(view), CHUNK)
                parts = (view[start : start + CHUNK].astype(np.float32) for start in starts)
                cells = np.concatenate([np.asarray(pooled(part)) for part in parts])
                with files.atomic_write(file) as draft, draft.open("wb") as stream:
                    np.save(stream, cells)
            with files.reading(file, "remove it"):
                found.cells[name].append(np.load(file, allow_pickle=False))
        found.places.update({image: (name, row) for row, image in enumerate(split.ids)})
    return HeadInputs(found, experiment.splits, part, network, variables)


class Head:
    """A head of one configuration, compiled once for all seeds."""

    def __init__(self, config: Config, inputs: HeadInputs):
        maps, number = inputs.maps, config.data.class_split
        splits = splitting.redrawn(inputs.splits, number) if number else dict(inputs.splits)
        self.data_hash = splitting.digest(splits)
        # The network itself would only be compiled and carried along.
        network = plugin_module("backbone", config.backbone.name).build(config.backbone)
        backbone = Stored(network.channels, config.backbone, inputs.part)
        count = config.train.feature_views
        train = replace(config.train, feature_views=0, features="")
        stored = replace(config, backbone=backbone, train=train)
        self.experiment = experiment = experiments.build(stored, splits)
        whole = bool(inputs.part) or experiment.method.hooks.whole_maps
        self.features = maps.of(experiment.splits["train"].ids, count, whole=whole)
        self.tested = "validation" if config.train.select == "validation" else "test"
        self.points = maps.of(experiment.splits[self.tested].ids, 1, whole=whole)[:, 0]
        self.untrained = self._untrained(inputs, config)
        self.embed = jax.jit(experiment.method.embed)
        as_floats = experiment._replace(augment=lambda maps, key: maps.astype(jnp.float32))
        self.update = as_floats.jitted_step(experiment.template())

    def _untrained(self, inputs: HeadInputs, config: Config) -> dict[str, Any]:
        """Retrieval by the averages of the maps of the network before training."""

        def pooled(maps: jax.Array) -> jax.Array:
            maps = maps.astype(jnp.float32)
            if inputs.part:
                above = _with_output(inputs.network, inputs.part, maps)
                images = inputs.network.preprocess(jnp.zeros((len(maps), SIDE, SIDE, 3), jnp.uint8))
                maps = above(*inputs.variables, images, train=False)[0]
            return maps.mean(axis=(1, 2))

        rows = by_chunks(jax.jit(pooled), self.points)
        return retrieval(self.experiment, rows, self.tested, cluster=False)

    def trained(self, seed: int) -> tuple[Experiment, TrainState]:
        """The state after training with a seed."""
        config = replace(self.experiment.config, seed=seed)
        train, data = self.experiment.splits["train"], config.data
        relation = relations.class_weights(data.relation, train.classes)
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

    def embedded(self, state: TrainState, points: np.ndarray) -> np.ndarray:
        """The embeddings float32 [N, D] of images, from their maps or cells."""
        return by_chunks(lambda part: self.embed(state.params, state.model_state, part), points)

    def results(self, seed: int, console: Console) -> tuple[dict[str, Any], np.ndarray]:
        """The contents of `results.json` and the embeddings of the tested images."""
        began = time.monotonic()
        experiment, state = self.trained(seed)
        seconds = time.monotonic() - began
        rows = self.embedded(state, self.points)
        results = measured(experiment, rows, self.tested)
        if experiment.config.evaluation.refine:
            results["refined"] = model_metrics.refined(experiment, state, {"test": rows}, console)
        results["mechanism"] = model_metrics.mechanism(experiment, state)
        if experiment.config.evaluation.diagnose:  # also on the training classes
            seen = self.embedded(state, self.features[:, 0])
            found = retrieval(experiment, seen, "train", cluster=False)["recall@1"]
            results["overfitting"] = found - results["recall@1"]
        train = experiment.config.train
        return results | {
            "untrained": {key: self.untrained[key] for key in ("recall@1", "map@r")},
            "protocol": model_metrics.protocol_of(experiment, self.tested),
            "length": {"steps": train.steps, "epochs": train.epochs},
            "step": int(state.step),
            "model": train.select,
            "timing": {"seconds": seconds},
            "machine": logs.machine(),
        }, rows


def by_chunks(embed: Callable[[np.ndarray], Any], points: np.ndarray) -> np.ndarray:
    """The embeddings float32 [N, D] of images, from their maps or cells, by one program."""
    rows = []
    for start in range(0, len(points), CHUNK):
        part = points[start : start + CHUNK]
        padded = np.zeros((CHUNK, *part.shape[1:]), np.float32)
        padded[: len(part)] = part
        rows.append(np.asarray(embed(padded)))
    return np.concatenate(rows)[: len(points)]


def retrieval(
    experiment: Experiment, rows: np.ndarray, name: str, *, cluster: bool
) -> dict[str, Any]:
    """Retrieval, also by class, and with `cluster` NMI, of embeddings float32 [N, D] of a split."""
    config, distance = experiment.config, experiment.method.distance
    split = experiment.splits[name]
    found = model_metrics.metrics(
        config, distance, {"test": split}, {"test": rows}, cluster=cluster, per_query=True
    )
    queries = {"recall@1": found["rank"] == 1, "map@r": found["map@r_per_query"]}
    found["by_class"] = {
        metric: {
            name: float(np.mean(values[split.labels == number]))
            for number, name in enumerate(split.classes)
        }
        for metric, values in queries.items()
    }
    return {key: value for key, value in found.items() if not isinstance(value, np.ndarray)}


def measured(experiment: Experiment, rows: np.ndarray, tested: str) -> dict[str, Any]:
    """Retrieval, NMI and geometry of embeddings float32 [N, D]."""
    split, cluster = experiment.splits[tested], experiment.config.evaluation.cluster
    return retrieval(experiment, rows, tested, cluster=cluster) | {
        "density": geometry.density(rows, split.labels),
        "spectral_decay": geometry.spectral_decay(rows),
    }


class Bench:
    """Trains heads one after the other, reusing what successive heads share."""

    def __init__(self) -> None:
        self.console = Console(quiet=True)
        self.code = workdir.source_digest()
        self.inputs: dict[str, HeadInputs] = {}
        self.head: Head | None = None
        self.common = ""  # configuration of the head without its seed

    def prepare(self, config: Config) -> tuple[HeadInputs, Head]:
        """The maps for a configuration, and its head, compiled once for successive seeds."""
        views = config.train.feature_views, bool(config.data.class_split)
        frozen = {name: group.freeze for name, group in config.train.groups.items()}
        network = {name: value for name, value in frozen.items() if name.startswith("backbone")}
        data = replace(config.data, **OF_BATCHES, class_split=0, validation_share=0.0)
        key = repr((data, config.backbone, network, config.train.features, views))
        if key not in self.inputs:
            self.inputs = {key: head_inputs(config, self.console)}
        common = repr(replace(config, seed=0, name="", paper={}))
        if self.head is None or common != self.common:
            self.head, self.common = Head(config, self.inputs[key]), common
        return self.inputs[key], self.head

    def run(self, trial: Trial, config: Config) -> str:
        """Trains a trial or evaluates an ensemble, writes its files, and says the result."""
        directory = trial.directory
        _, head = self.prepare(config)
        if trial.members:
            stored = (np.load(member / "embeddings.npy") for member in trial.members)
            parts = [unit_rows(part.astype(np.float32)) for part in stored]
            rows = labelled_embeddings.combine(parts, trial.weights or [1.0] * len(parts))
            results = measured(head.experiment, rows, head.tested)
        else:
            results, rows = head.results(config.seed, self.console)
        directory.mkdir(parents=True, exist_ok=True)
        split, shape = head.experiment.splits["train"], head.experiment.shape
        images = len(split.labels)
        facts = workdir.provenance(config, head.data_hash, split.classes, images, shape)
        files.write_json(directory / "config.json", facts | {"code": self.code})
        with files.atomic_write(directory / "embeddings.npy") as draft, draft.open("wb") as file:
            np.save(file, rows.astype(np.float16))
        files.write_json(directory / "results.json", results)
        return f"R@1 {100 * results['recall@1']:.1f}  MAP@R {100 * results['map@r']:.1f}"


def train(trials: Sequence[Trial]) -> None:
    """Trains the unfinished heads and evaluates ensembles of them, which come after their members.

    Says which ones fail; the others may still decide their claims.
    """
    bench, configs = Bench(), {trial.directory: trial.config for trial in trials}
    with runner.stoppable() as stop:
        for number, trial in enumerate(trials, start=1):
            # An ensemble is evaluated with the configuration of its first member.
            config = trial.config or configs[trial.members[0]]
            assert config
            if (trial.directory / "results.json").exists():
                continue
            if stop.is_set():
                break
            try:
                result = bench.run(trial, config)
            except (UserError, FileNotFoundError) as error:
                result = f"failed: {error}"
            runner.say(f"{number} of {len(trials)}  {trial.name}: {result}")
