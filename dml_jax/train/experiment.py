"""From a configuration to the parts of a run: data, method, optimizer, mesh. Everything is checked here, early."""

import hashlib
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from dml_jax import config as configs
from dml_jax.backbones.contract import Backbone
from dml_jax.config import Config, Data
from dml_jax.data import augment, datasets, samplers, transforms
from dml_jax.data.holdout import hold_out
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import refinement_batches
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.train import mesh as meshes
from dml_jax.train import optimizers, step
from dml_jax.train.state import TrainState


class Teacher(NamedTuple):
    """A trained model that a run learns from.

    Attributes:
      teach: images uint8 [B, H, W, 3] -> Teaching; a pytree whose leaves, the model's variables, are on every device.
      origin: which model it is, for the record: "hash" of its configuration, "step", "sha256" of its variables.
    """

    teach: jax.tree_util.Partial
    origin: dict[str, Any]


class Experiment(NamedTuple):
    """The parts of a run.

    Attributes:
      config: what was asked for.
      splits: "train", "test", and "validation" where classes are held out.
      sampler: step -> indices into the training split.
      method: the pure functions.
      augment: (images, key) -> images, on the device, in training.
      optimizer: with the learning rates' schedule inside.
      schedule: step -> factor on every learning rate.
      steps: length of the run, warm-up included.
      mesh: the devices.
      shape: (height, width) of a training image in pixels.
      teacher: the model that `method.loss` asks; `build` leaves it out, only training needs it.
    """

    config: Config
    splits: dict[str, Split]
    sampler: Sampler
    method: Method
    augment: step.Augment
    optimizer: optax.GradientTransformation
    schedule: optimizers.Schedule
    steps: int
    mesh: Mesh
    shape: tuple[int, int]
    teacher: Teacher | None = None


def build(config: Config) -> Experiment:
    """Loads the data set and puts the run together; nothing is trained or written.

    Raises:
      UserError: what in the configuration or the data does not fit.
    """
    data, train = config.data, config.train
    splits = datasets.load(data)
    if data.validation_share:
        splits["train"], splits["validation"] = hold_out(splits["train"], data.validation_share)
    elif train.select == "validation":
        raise ConfigError("train.select='validation': needs a validation set; set data.validation_share, e.g. to 0.2")
    classes = len(splits["train"].classes)
    for name, split in splits.items():
        _check(name, split)
    devices = jax.device_count()
    if data.batch_size % devices:
        raise ConfigError(f"data.batch_size={data.batch_size}: must be a multiple of the {devices} devices")

    sampler = samplers.build(data, splits["train"].labels, config.seed)
    warmup = sampler.first_step(train.warmup_epochs)
    steps = warmup + train.steps if train.steps else sampler.first_step(train.warmup_epochs + train.epochs)
    schedule = optimizers.factor(
        train,
        start=warmup,
        stop=steps,
        milestones=tuple(sampler.first_step(train.warmup_epochs + epoch) for epoch in train.milestones),
    )
    method = build_method(config, TrainingSet(classes, len(splits["train"].labels)))
    if config.evaluation.refine and method.refine is None:
        raise ConfigError(
            f"evaluation.refine={','.join(config.evaluation.refine)}: method {config.method.name} has no test-time "
            "refinement"
        )
    gallery = splits["test"].gallery
    images = len(splits["test"].labels) + (0 if gallery is None else len(gallery.labels))
    judged = config.evaluation
    refinement_batches.check_options(judged.refine, judged.refine_clusters, judged.refine_min_samples, images)
    optimizer = optimizers.build(train, method, schedule, warmup_steps=warmup)
    image = transforms.training(data)(splits["train"].read(0, np.random.default_rng(0)), np.random.default_rng(0))
    shape = (image.shape[0], image.shape[1])
    augmentation = partial(augment.apply, data=data)
    return Experiment(config, splits, sampler, method, augmentation, optimizer, schedule, steps, meshes.make(), shape)


def build_method(config: Config, data: TrainingSet) -> Method:
    """The method of a configuration on its backbone, with random erasing where the configuration asks for it."""
    backbone = configs.module("backbones", config.backbone.name, "backbone.name").build(config.backbone)
    methods = configs.module("methods", config.method.name, "method.name")
    return methods.build(config.method, erasing(backbone, config.data), data)


def erasing(backbone: Backbone, data: Data) -> Backbone:
    """The backbone behind random erasing, in training; it comes after the normalisation."""
    if not data.erasing:
        return backbone

    def apply(params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: jax.Array | None) -> Any:
        if train and key is not None:
            boxes, key = jax.random.split(key)
            inputs = augment.erase(inputs, boxes, data.erasing)
        return backbone.apply(params, stats, inputs, train=train, key=key)

    return backbone._replace(apply=apply)


def _check(name: str, split: Split) -> None:
    count, classes = len(split.labels), len(split.classes)
    if count == 0:
        raise DataError(f"the {name} split holds no image")
    if split.labels.min() < 0 or split.labels.max() >= classes:
        raise DataError(
            f"the {name} split has labels from {split.labels.min()} to {split.labels.max()}, its {classes} classes "
            f"are numbered 0 to {classes - 1}"
        )
    if len(np.unique(split.labels)) < 2:
        raise DataError(f"the {name} split holds one class only; at least 2 are needed")


def key(config: Config) -> jax.Array:
    """The run's random key; each step folds its number in."""
    return jax.random.key(config.seed)


def example(config: Config, method: Method, shape: tuple[int, int]) -> Batch:
    """A batch of zeros in the shapes of the run."""
    size = config.data.batch_size
    zeros = jnp.zeros((size,), jnp.int32)
    return Batch(jnp.zeros((method.views, size, *shape, 3), jnp.uint8), zeros, zeros)


def batch(experiment: Experiment, images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> Batch:
    """The global batch from this host's rows, as `mesh.shard` takes them, and the run's teacher if it has one."""
    whole = meshes.shard(experiment.mesh, images, labels, index)
    return whole._replace(teacher=experiment.teacher.teach) if experiment.teacher else whole


def initial(experiment: Experiment) -> TrainState:
    """The state before the first step, copied to every device; a pure function of the seed."""
    seed = jax.random.fold_in(key(experiment.config), 2**31 - 1)
    batch = example(experiment.config, experiment.method, experiment.shape)
    return meshes.replicate(experiment.mesh, step.initial(experiment.method, experiment.optimizer, seed, batch))


def template(
    config: Config,
    method: Method,
    optimizer: optax.GradientTransformation,
    shape: tuple[int, int],
    mesh: Mesh,
) -> Any:
    """Shapes, dtypes and shardings of a run's state, computing nothing."""
    batch = example(config, method, shape)
    shapes = jax.eval_shape(lambda: step.initial(method, optimizer, key(config), batch))
    sharding = meshes.copied(mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


def data_hash(experiment: Experiment) -> str:
    """SHA-256 of the names and labels of all splits and, where they were prepared, of their images."""
    digest = hashlib.sha256()
    for name, split in sorted(experiment.splits.items()):
        digest.update(f"{name} {len(split.labels)}".encode())
        digest.update(np.ascontiguousarray(split.labels).data)
        digest.update("\n".join(split.ids).encode())
        digest.update(split.content.encode())
    return digest.hexdigest()
