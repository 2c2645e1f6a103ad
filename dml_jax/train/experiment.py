"""From a configuration to the parts of a run: data, method, optimizer, mesh. Everything is validated here, early."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from dml_jax import config as configs
from dml_jax.backbones.contract import Backbone, optional
from dml_jax.backbones.linen import on_features
from dml_jax.config import Config, Data, Train
from dml_jax.config.fields import validate
from dml_jax.config.train import backbone_is_frozen
from dml_jax.data import augment, formats, samplers, transforms
from dml_jax.data.holdout import hold_out
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split
from dml_jax.data.split_metadata import BLOCK
from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import refinement_batches
from dml_jax.methods.contract import Embed, Method, PyTree, TrainingSet, zeros
from dml_jax.train import optimizers, step
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.variants import (
    chunks,
    class_tables,
    flips_and_scales,
    frozen_groups,
    low_rank,
    path_groups,
    precision,
)


class Teacher(NamedTuple):
    """A trained model that a run learns from."""

    # images uint8 [B, H, W, 3] -> Teaching; a pytree whose leaves, the model's variables, are on every device.
    teach: jax.tree_util.Partial
    # Which model it is, for `config.json`: "hash" of its configuration, "step", "sha256" of its variables, and whether
    # its run had "finished".
    origin: dict[str, Any]


class Experiment(NamedTuple):
    """The parts of a run."""

    config: Config
    # "train", "test", and "validation" where classes are held out or the data set has such a split.
    splits: dict[str, Split]
    sampler: Sampler  # step -> indices into the training split
    method: Method
    augment: step.Augment  # (images, key) -> images, on the device, in training
    optimizer: optax.GradientTransformation  # with the schedule of the learning rates
    schedule: optimizers.Schedule  # step -> factor of every learning rate
    steps: int  # length of the run, warm-up included
    mesh: Mesh
    shape: tuple[int, int]  # (height, width) in pixels of the images that are embedded
    # The functions of `evaluation.readings` like `Method.embed`, by name; empty if there are none.
    readings: Mapping[str, Embed] = MappingProxyType({})
    # The model that `method.loss` uses; set by `teacher.with_teacher`, because only training needs it.
    teacher: Teacher | None = None
    # float32 [N, views, 1, 2, K] of the training images, if training draws them instead of images; set by
    # `frozen_features.with_features`.
    features: np.ndarray | None = None
    # Work directory or directory of converted weights that the training starts from; empty for `method.init`.
    start: str = ""


def build(config: Config) -> Experiment:
    """Loads the data set and assembles the run; nothing is trained or written."""
    data, train = config.data, config.train
    splits = formats.load(data)
    if data.validation_share and "validation" in splits:
        raise ConfigError(
            f"data.validation_share={data.validation_share}: the data set has its own validation split; set it to 0"
        )
    if data.validation_share:
        splits["train"], splits["validation"] = hold_out(splits["train"], data.validation_share)
    elif train.select == "validation" and "validation" not in splits:
        raise ConfigError("train.select='validation': needs a validation set; set data.validation_share, e.g. to 0.2")
    for name, split in splits.items():
        check_split(name, split)
    _check_batch_size(config, jax.device_count())

    sampler = samplers.build(data, splits["train"].labels, config.seed)
    warmup = sampler.first_step(train.warmup_epochs)
    steps = length(train, sampler)
    schedule = optimizers.rate_factor(
        train,
        start=warmup,
        stop=steps,
        milestones=tuple(sampler.first_step(train.warmup_epochs + epoch) for epoch in train.milestones),
    )
    images = training_set(splits["train"])
    method = chunks.chunked(build_method(config, images), train.chunks)
    _check_refinement(config, method, splits["test"])
    optimizer = optimizers.build(train, method, schedule, warmup_steps=warmup)
    return Experiment(
        config,
        splits,
        sampler,
        method,
        partial(augment.apply, data=data),
        optimizer,
        schedule,
        steps,
        meshes.make(),
        _image_shape(data, splits["train"]),
        {name: build_method(read_as(config, name), images).embed for name in config.evaluation.readings},
        start=config.init_from,
    )


def training_set(split: Split) -> TrainingSet:
    """What a method may know about the training split."""
    return TrainingSet(len(split.classes), len(split.labels), split.labels)


def length(train: Train, sampler: Sampler) -> int:
    """Steps of a training, those of the warm-up included."""
    epochs = train.warmup_epochs + train.epochs
    return sampler.first_step(epochs) + train.steps


def build_method(config: Config, data: TrainingSet) -> Method:
    """The method of a configuration on its backbone, with random erasing if the configuration asks for it."""
    backbone = configs.module("backbone", config.backbone.name).build(config.backbone)
    if not isinstance(backbone, Backbone):
        raise ConfigError(
            f"backbone.name={config.backbone.name!r}: its build() returns a {type(backbone).__name__}, not a Backbone; "
            "adapt it as in docs/guides/extend.md"
        )
    if config.train.feature_views:
        backbone = on_features(backbone)
    methods = configs.module("method", config.method.name)

    groups = config.train.groups
    frozen = {name for name, group in groups.items() if group.freeze or group.rank}

    def build_for(classes: int) -> Method:
        def build_on(backbone: Backbone) -> Method:
            erased = _with_erasing(backbone, config.data)
            built: Method = methods.build(config.method, erased, data._replace(classes=classes))
            return path_groups.by_path(built, groups)

        method = build_on(backbone)
        if method.group(("backbone",)) in frozen:
            method = build_on(frozen_groups.as_evaluated(backbone, random=not backbone_is_frozen(groups)))
        return low_rank.updating(frozen_groups.keeping_state(method, frozen), groups)

    method = build_for(data.classes)
    if config.train.shard_classes:
        side = config.data.image_size or 224  # of any images: only the shapes of the tables are read from it
        batch = zeros(config.data.batch_size, (side, side), method.hooks.views)
        method = class_tables.spread(build_for, data.classes, batch)
    if not config.train.feature_views:
        evaluation = config.evaluation
        embed = flips_and_scales.averaged(method.embed, flip=evaluation.flip, scales=evaluation.scales)
        method = method._replace(embed=embed)
    return precision.in_bfloat16(method) if config.train.precision == "bfloat16" else method


def read_as(config: Config, reading: str) -> Config:
    """The configuration whose method embeds as one of `evaluation.readings` says.

    Raises ConfigError if the reading sets options of the method that are not of the test time, or to invalid values.
    """
    key, options = f"evaluation.readings.{reading}", config.evaluation.readings[reading]
    known = getattr(configs.module("method", config.method.name), "TEST_TIME", ())
    for option in options:
        if option not in known:
            allowed = f"only of {', '.join(known)}" if known else "of no option"
            raise ConfigError(f"{key}.{option}: method {config.method.name} allows readings {allowed}")
    values = asdict(config.method) | options
    return replace(config, method=validate(type(config.method), values, key))


def _with_erasing(backbone: Backbone, data: Data) -> Backbone:
    """A backbone whose normalised inputs are randomly erased in training."""
    if not data.erasing:
        return backbone

    def apply(
        params: PyTree, stats: PyTree, inputs: jax.Array, /, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        if train and key is not None:
            key_boxes, key = jax.random.split(key)
            inputs = augment.erase(inputs, key_boxes, data.erasing)
        return backbone.apply(params, stats, inputs, train=train, key=key)

    return backbone._replace(apply=apply)


def check_split(name: str, split: Split) -> None:
    """Raises DataError unless the split has images of at least two classes and valid labels."""
    count, classes = len(split.labels), len(split.classes)
    if count == 0:
        raise DataError(f"the {name} split has no images")
    if split.labels.min() < 0 or split.labels.max() >= classes:
        raise DataError(
            f"the {name} split has labels from {split.labels.min()} to {split.labels.max()}; those of its {classes} "
            f"classes must be 0 to {classes - 1}"
        )
    if split.labels.min() == split.labels.max():
        raise DataError(
            f"the {name} split has one class only; at least 2 are needed (4 in a folder, half of which are tested)"
        )


def _check_batch_size(config: Config, devices: int) -> None:
    size, parts = config.data.batch_size, config.train.chunks
    if size % devices:
        raise ConfigError(f"data.batch_size={size}: must be a multiple of the {devices} devices")
    if size % (devices * parts):
        raise ConfigError(
            f"train.chunks={parts}: data.batch_size={size} must be a multiple of {devices * parts}, the chunks times "
            f"the {devices} devices"
        )
    if config.train.shard_classes and class_tables.MULTIPLE % devices:
        raise ConfigError(
            f"train.shard_classes=true: the number of devices (={devices}) must divide {class_tables.MULTIPLE}; set it "
            "to false, or use fewer devices"
        )
    if parts > 1 and optional(config.backbone).freeze_bn is False:
        raise ConfigError(
            f"train.chunks={parts}: batch norm would compute its statistics of each chunk instead of the whole batch; "
            "set backbone.freeze_bn=true, or train.chunks=1"
        )


def _check_refinement(config: Config, method: Method, test: Split) -> None:
    options = config.evaluation
    if options.refine and method.hooks.refine is None:
        raise ConfigError(
            f"evaluation.refine={','.join(options.refine)}: method {config.method.name} has no test-time refinement"
        )
    images = len(test.labels) + (0 if test.gallery is None else len(test.gallery.labels))
    refinement_batches.check_options(options.refine, options.refine_clusters, options.refine_min_samples, images)


def _image_shape(data: Data, split: Split) -> tuple[int, int]:
    """(height, width) of the first training image after the transform of the evaluation."""
    image = transforms.evaluation(data)(split.read(0, np.random.default_rng(0)))
    return image.shape[0], image.shape[1]


def data_hash(splits: Mapping[str, Split]) -> str:
    """SHA-256 of the image names and labels of all splits and, except for tensorflow_datasets, of the images."""
    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        digest.update(f"{name} {len(split.labels)}".encode())
        digest.update(np.ascontiguousarray(split.labels).data)
        for start in range(0, len(split.ids), BLOCK):  # ten million names at once would take a gigabyte
            digest.update(("\n" * (start > 0) + "\n".join(split.ids[start : start + BLOCK])).encode())
        digest.update(split.content.encode())
    return digest.hexdigest()
