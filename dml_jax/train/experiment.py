"""Builds the parts of a run from its configuration: data, batches, method, optimizer, step.

Everything is validated here, early; all processes must have built the same parts.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from dml_jax.backbones.convolution import batches_over
from dml_jax.config import Config, flatten
from dml_jax.data import arrays, augment, formats, pipeline, relations, samplers, transforms
from dml_jax.data import split as splitting
from dml_jax.data.arrays import Shape
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split, hold_out, subset
from dml_jax.errors import ConfigError, DataError, counted, suggest
from dml_jax.methods.contract import Batch, Embed, Method, TrainingSet, zeros
from dml_jax.train import embedding, optimizers, step
from dml_jax.train.distributed import device_mesh, process_group
from dml_jax.train.embedding import Embedder
from dml_jax.train.method_wrappers import build_method
from dml_jax.train.model import TrainedModel, with_test_variant
from dml_jax.train.records import workdir
from dml_jax.train.step import TrainState

PER_PROCESS = ("data.path", "data.threads", "data.workers")  # may differ between processes


class Experiment(NamedTuple):
    """The parts of a run."""

    config: Config
    splits: dict[str, Split]  # "train", "test", perhaps "validation" and "gallery"
    sampler: Sampler  # step -> indices into the training split
    method: Method
    augment: step.Augment  # (images, key) -> images, on the device, in training
    optimizer: optax.GradientTransformation  # with the schedule of the learning rates
    schedule: optimizers.Schedule  # step -> factor of every learning rate
    steps: int  # length of the run, warm-up included
    mesh: Mesh
    shape: Shape  # (height, width) of embedded images in pixels, see `data.arrays`
    # By name, see `evaluation.test_variants`.
    test_variants: Mapping[str, Embed] = MappingProxyType({})
    # The model that `method.loss` learns from, images uint8 [B, H, W, 3] -> Teaching: a pytree
    # whose leaves (variables) are on every device; only training sets it (`teacher.with_teacher`).
    teach: jax.tree_util.Partial | None = None
    # Its entry in `config.json`: step, SHA-256 of its variables, whether its run has finished.
    teacher: Mapping[str, Any] = MappingProxyType({})
    # float32 [N, views, 1, 2, K], used instead of training images; see `frozen_features`.
    features: np.ndarray | None = None
    start: str = ""  # directory of a run or of converted weights to start from

    @property
    def key(self) -> jax.Array:
        """The random key of the run; each step folds in its number."""
        return jax.random.key(self.config.seed)

    @property
    def class_names(self) -> list[str]:
        """Names of the training classes."""
        return [str(name) for name in self.splits["train"].classes]

    @property
    def data_hash(self) -> str:
        """SHA-256 of the data, see `split.digest`."""
        return splitting.digest(self.splits)

    def batches(self, start: int, stop: int) -> pipeline.BatchReader[Any]:
        """Reads this host's rows of the training batches `start` to `stop` - 1."""
        return pipeline.training(
            self.splits["train"],
            self.sampler,
            self.config.data,
            seed=self.config.seed,
            features=self.features,
            views=self.method.hooks.views,
            start=start,
            stop=stop,
            host=jax.process_index(),
            hosts=jax.process_count(),
            accelerators=sum(device.platform != "cpu" for device in self.mesh.local_devices),
        )

    def device_batch(self, images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> Batch:
        """The global batch from this host's rows, with the run's teacher if there is one."""
        batch = device_mesh.shard_batch(self.mesh, images, labels, index)
        return batch._replace(teacher=self.teach)

    def example_batch(self) -> Batch:
        return zeros(self.config.data.batch_size, self.shape, self.method.hooks.views)

    def template(self) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        return step.state_shapes(self.config, self.method, self.optimizer, self.shape, self.mesh)

    def filled(self, state: TrainState) -> TrainState:
        """The state after `Hooks.fill`."""
        fill = self.method.hooks.fill
        if fill is None:
            return state
        with self.batches(0, 2**31 - 1) as reader:
            batches = (self.device_batch(*arrays) for arrays in reader)
            return state._replace(model_state=fill(state.params, state.model_state, batches))

    def jitted_step(self, like: TrainState) -> Any:
        """`step.build`, compiled with the state donated and its layout unchanged.

        (leaves, batch, key) -> (leaves, metrics), with the leaves of a state `like` this one:
        flattening and rebuilding a state would take longer than starting the program.
        """
        everywhere: Any = device_mesh.replicated(self.mesh)
        structure = jax.tree.structure(like)
        built = step.build(self.method, self.optimizer, self.augment)

        def update(leaves: list[jax.Array], batch: Batch, key: jax.Array) -> Any:
            with batches_over(self.mesh):
                state, metrics = built(jax.tree.unflatten(structure, leaves), batch, key)
            return jax.tree.leaves(state), metrics

        options = device_mesh.compiler_options(self.mesh)
        return jax.jit(update, donate_argnums=0, out_shardings=everywhere, compiler_options=options)

    def embedder(self, function: Embed) -> Embedder:
        """A function of images such as `Method.embed`, compiled for the splits of the run."""
        return embedding.compiled(function, self.config, self.mesh, self.shape)

    def model(self, state: TrainState, variant: str = "") -> TrainedModel:
        """The trained model of a state, with one of `evaluation.test_variants`."""
        method = self.method._replace(embed=self.test_variants.get(variant, self.method.embed))
        variables, at = (state.params, state.model_state), int(state.step)
        return TrainedModel(
            self.config, method, *variables, at, self.shape, self.class_names, variant=variant
        )

    def provenance(self) -> dict[str, Any]:
        """The contents of `config.json`."""
        images, names = len(self.splits["train"].labels), self.class_names
        return workdir.provenance(self.config, self.data_hash, names, images, self.shape)


def build(
    config: Config, splits: dict[str, Split] | None = None, mesh: Mesh | None = None
) -> Experiment:
    """Loads the data set, unless `splits` are given, and builds the parts of a run."""
    data, train = config.data, config.train
    splits = formats.load(data) if splits is None else splits
    mesh = mesh or device_mesh.make()
    if data.validation_share and "validation" not in splits:
        splits["train"], splits["validation"] = hold_out(splits["train"], data.validation_share)
    elif train.select == "validation" and "validation" not in splits:
        raise ConfigError(
            f"train.select={train.select!r}: needs a validation set; set data.validation_share=0.2"
        )
    if train.select == "validation":
        splits["train"] = _without_selecting_classes(config, splits)
    for name, split in splits.items():
        if len(np.unique(split.labels)) < 2:
            raise DataError(
                f"the {name} split needs images of at least 2 classes; a folder needs 4 classes, "
                "because half of them are test classes"
            )
    _check_batch_size(config, mesh.size)
    if train.precision == "tensorfloat32" and mesh.devices.flat[0].platform == "tpu":
        raise ConfigError(
            "train.precision='tensorfloat32': TPUs do not support it; use bfloat16 or float32"
        )

    relation = relations.class_weights(data.relation, splits["train"].classes)
    if relation is not None and not getattr(config.method, "compares_pairs", False):
        raise ConfigError(
            f"data.relation={data.relation!r}: method {config.method.name} compares only "
            "classes; use the baseline with a pair loss, or evaluate the finished run with dml-jax "
            "evaluate --relation"
        )
    if relation is not None and config.evaluation.protocol == "paper":
        raise ConfigError(
            "evaluation.protocol='paper': drops the nearest image as one of the query's class, "
            f"which data.relation={data.relation!r} does not have; set it to clean"
        )
    sampler = samplers.build(data, splits["train"].labels, config.seed, relation)
    warmup = sampler.first_step(train.warmup_epochs)
    steps = sampler.first_step(train.warmup_epochs + train.epochs) + train.steps
    epochs = sampler.epoch(steps - 1) + 1 - train.warmup_epochs
    decays = range(train.period, epochs, train.period) if train.period else train.milestones
    milestones = tuple(sampler.first_step(train.warmup_epochs + epoch) for epoch in decays)
    schedule = optimizers.rate_factor(train, start=warmup, stop=steps, milestones=milestones)
    schedule = optimizers.scaled(schedule, train, data.batch_size)
    images = training_set(splits["train"])._replace(relation=relation)
    method = build_method(config, images)
    if train.select == "folds":
        _check_folds(config, method)
    _check_refinement(config, method, splits)
    layer = getattr(config.backbone, "layer", optimizers.no_layer)
    optimizer = optimizers.build(train, method, schedule, warmup_steps=warmup, layer=layer)
    image = splits["train"].read(0, np.random.default_rng(0))
    transforms.check_images_only(data, arrays.shape_of(image))
    shape = arrays.shape_of(transforms.evaluation(data)(image))
    if not arrays.is_image(shape) and hasattr(config.backbone, "pixels"):
        problem = f"is for images, but the data set contains {arrays.describe(shape)}"
        remedy = 'give a network for these arrays (see "Any arrays" in docs/guides/own_parts.md)'
        raise ConfigError(f"backbone.name={config.backbone.name!r}: {problem}; {remedy}")
    test_variants = {
        name: build_method(with_test_variant(config, name), images).embed
        for name in config.evaluation.test_variants
    }
    experiment = Experiment(
        config=config,
        splits=splits,
        sampler=sampler,
        method=method,
        augment=partial(augment.apply, data=data),
        optimizer=optimizer,
        schedule=schedule,
        steps=steps,
        mesh=mesh,
        shape=shape,
        test_variants=test_variants,
        start=config.init_from,
    )
    if jax.process_count() > 1:
        settings = flatten(asdict(config))
        settings |= {f"version of {name}": number for name, number in workdir.versions().items()}
        settings |= {
            "data (SHA-256)": experiment.data_hash,
            "code (SHA-256)": workdir.source_digest(),
        }
        shared = {name: fact for name, fact in settings.items() if name not in PER_PROCESS}
        process_group.check_same(shared)
    return experiment


def training_set(split: Split) -> TrainingSet:
    return TrainingSet(len(split.classes), len(split.labels), split.labels)


def _check_batch_size(config: Config, devices: int) -> None:
    size, parts = config.data.batch_size, config.train.chunks
    if size % (devices * parts):
        nearest = max(1, round(size / (devices * parts))) * devices * parts
        chunks = f" times train.chunks={parts}" if parts > 1 else ""
        raise ConfigError(
            f"data.batch_size={size}: must be a multiple of the {devices} devices{chunks}; the "
            f"nearest is {nearest}"
        )
    if parts > 1 and getattr(config.backbone, "freeze_bn", None) is False:
        raise ConfigError(
            f"train.chunks={parts}: batch norm would compute statistics per chunk instead of per "
            "batch; set backbone.freeze_bn=true, or train.chunks=1"
        )


def _without_selecting_classes(config: Config, splits: dict[str, Split]) -> Split:
    """The training split without the classes that select the model.

    With data.split=all, the training set also contains the classes of the data set's own validation
    split. Otherwise, a common class is a ConfigError.
    """
    train, validation_classes = splits["train"], set(splits["validation"].classes)
    common = sorted(validation_classes.intersection(train.classes))
    if not common:
        return train
    if config.data.split != "all":
        problem = f"{counted(len(common), 'class')} of the validation split, e.g. {common[0]!r}"
        raise ConfigError(
            f"train.select={config.train.select!r}: {problem}, would also be trained on, so "
            "the selection would not measure unseen classes; set train.select=last"
        )
    remaining = [
        number for number, name in enumerate(train.classes) if name not in validation_classes
    ]
    return subset(train, np.array(remaining, np.int64))


def _check_folds(config: Config, method: Method) -> None:
    if method.hooks.published is None:
        raise ConfigError(
            "train.select='folds': needs an embedding that published weights also have; set "
            "train.select=last, or method.embedding_dim=0 and method.init='whitened' (baseline)"
        )
    if config.train.feature_views:
        raise ConfigError(
            "train.select='folds': trains the whole network; set train.feature_views=0, or "
            "train.select=last"
        )


def _check_refinement(config: Config, method: Method, splits: dict[str, Split]) -> None:
    name, kinds = config.method.name, dict(method.hooks.refine)
    for kind in config.evaluation.refine:
        if "." not in kind and kind not in kinds:
            remedy = suggest(kind, kinds) if kinds else "give the import path of a function"
            problem = f"method {name} has no such test-time refinement"
            raise ConfigError(f"evaluation.refine={kind}: {problem}; {remedy}")
    tested = splitting.with_gallery(splits).values()
    method.hooks.check_refine(config, sum(len(split.labels) for split in tested))
