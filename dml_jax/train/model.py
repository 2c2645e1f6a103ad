"""From a configuration to its method, and from a directory to a trained model: a run's, or
published weights."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
from jax.sharding import Mesh

from dml_jax import config as configs
from dml_jax import files, numerics
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.functional import on_features
from dml_jax.backbones.weights import converted
from dml_jax.config import Config, Data, Evaluation, Train
from dml_jax.config.fields import Effect, effect, validate, with_precision
from dml_jax.config.modules import backbone_is_frozen
from dml_jax.data import augment
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.methods.contract import (
    Batch,
    Method,
    PyTree,
    TrainingSet,
    map_functions,
    no_classes,
    zeros,
)
from dml_jax.train import class_tables, embedding, optimizers, parameter_groups, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.embedding import Embedder
from dml_jax.train.records import model_files, workdir

LARGEST = 224  # side in pixels of the images of a published transformer
BATCH = 32  # images of published weights at once


class TrainedModel(NamedTuple):
    """A trained model without its data."""

    config: Config
    method: Method
    params: PyTree
    model_state: PyTree
    step: int  # of the checkpoint; 0 for published weights
    shape: tuple[int, int]  # (H, W) in pixels of the images that the network sees
    classes: Sequence[str]  # names of the training classes; empty for published weights
    unfinished: str = ""  # says that the run has not finished; empty if it has

    def embedder(self, *, few: bool = False) -> Embedder:
        """Its embedding, compiled for `evaluation.batch_size`; for `few` see `Embedder`."""
        return embedding.compiled(
            self.method.embed, self.config, device_mesh.make(), self.shape, few=few
        )


def build_method(config: Config, data: TrainingSet, mesh: Mesh | None = None) -> Method:
    """The method of a configuration; tables of classes are spread over the devices of `mesh`, by
    default all."""
    backbone = configs.module("backbone", config.backbone.name).build(config.backbone)
    if not isinstance(backbone, Backbone):
        raise ConfigError(
            f"backbone.name={config.backbone.name!r}: its build() returns a "
            f"{type(backbone).__name__}, "
            "not "
            "a "
            "Backbone; "
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
            built = methods.build(config.method, erased, data._replace(classes=classes))
            return parameter_groups.by_path(built, groups)

        method = build_on(backbone)
        if method.group(("backbone",)) in frozen:
            method = build_on(
                parameter_groups.as_evaluated(backbone, random=not backbone_is_frozen(config))
            )
        return parameter_groups.updating(parameter_groups.freezing(method, groups), groups)

    method = build_for(data.classes)
    if config.train.shard_classes:
        side = (
            config.data.image_size or 224
        )  # of any images: only the shapes of the tables are read from it
        batch = zeros(config.data.batch_size, (side, side), method.hooks.views)
        method = class_tables.spread(build_for, data.classes, batch, mesh or device_mesh.make())
    return computed_in(method, config.train.precision)


def computed_in(method: Method, precision: str) -> Method:
    """The method with its products and convolutions in "float32", "tensorfloat32" or "bfloat16"
    (`train.precision`).

    float32 is float32 everywhere: left to itself, JAX uses tensorfloat32 on GPUs and bfloat16 on
    TPUs. Otherwise the backbone and the products of heads and classifiers are computed in less,
    with bfloat16 also the activations of the backbone (`backbone.dtype`). Everything else stays in
    float32 with full products, and so do heads in evaluations.
    """

    def within(backbone: str, heads: str) -> Any:
        def wrap(function: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                with jax.default_matmul_precision(backbone), numerics.heads_in(heads):
                    return function(*arguments, **options)

            return call

        return wrap

    backbone = "tensorfloat32" if precision == "tensorfloat32" else "highest"
    full = map_functions(within("highest", "float32"), method)
    encode, loss = (
        within(backbone, precision)(method.encode),
        within("highest", precision)(method.loss),
    )
    return full._replace(encode=encode, loss=loss, embed=within(backbone, "float32")(method.embed))


def read_as(config: Config, reading: str) -> Config:
    """The configuration for embedding as one of `evaluation.readings`; raises ConfigError if its
    options are wrong."""
    key, options = f"evaluation.readings.{reading}", config.evaluation.readings[reading]
    kind = type(config.method)
    known = [
        option.name for option in fields(kind) if effect(kind, option.name) is Effect.EMBEDDING
    ]
    for option in options:
        if option not in known:
            allowed = f"only of {', '.join(known)}" if known else "of no option"
            raise ConfigError(
                f"{key}.{option}: method {config.method.name} allows readings {allowed}"
            )
    values = asdict(config.method) | options
    return replace(config, method=validate(type(config.method), values, key))


def _with_erasing(backbone: Backbone, data: Data) -> Backbone:
    """A backbone with random erasing of its normalised inputs in training."""
    if not data.erasing:
        return backbone

    def apply(
        params: PyTree,
        stats: PyTree,
        inputs: jax.Array,
        /,
        *,
        train: bool,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        if train and key is not None:
            key_boxes, key = jax.random.split(key)
            inputs = augment.erase(inputs, key_boxes, data.erasing)
        return backbone.apply(params, stats, inputs, train=train, key=key)

    return backbone._replace(apply=apply)


def reading_in_results(config: Config, directory: Path) -> str:
    """The entry of `evaluation.readings` that the results of a run report, or ""."""
    name = workdir.read_results(directory).get("reading")
    return name if name in config.evaluation.readings else ""


def load(
    directory: Path,
    checkpoint: str = "reported",
    warn: Callable[[str], None] | None = None,
    *,
    dtype: str | None = None,
    trust_code: bool = False,
) -> TrainedModel:
    """The model of a run, or published weights. Warns if the reported model of an unfinished run is
    asked for.

    Args:
      directory: a work directory, a model pulled by `export.hub`, or converted weights.
      checkpoint: "reported", "latest", "best" or a step.
      warn: called with each damaged checkpoint before an earlier one is read; None to raise
        instead.
      dtype: of the activations, instead of the configuration's.
      trust_code: as in `dml_jax.load`.
    """
    if (directory / converted.METADATA).exists():
        return _load_published(directory, checkpoint, dtype)
    from dml_jax.train.checkpoint import (
        Checkpoints,
    )  # slow to import, and not needed for published weights

    facts = workdir.read_config(directory)
    given = workdir.run_config(directory, trust_code=trust_code)
    # The variables come from the checkpoint, so the weights of their initialisation need not exist
    # any more.
    backbone = with_precision(replace(given.backbone, pretrained="none"), dtype)
    config = replace(given, backbone=backbone)
    if name := reading_in_results(config, directory):
        config = read_as(config, name)
    method = build_method(config, TrainingSet(facts["classes"], facts["images"]))
    optimizer = optimizers.build(
        config.train, method, lambda step: 1.0, warmup_steps=config.train.warmup_epochs
    )
    height, width = facts["shape"]
    everywhere = method._replace(hooks=method.hooks._replace(class_axis=no_classes))
    template = step.state_shapes(config, everywhere, optimizer, (height, width), device_mesh.make())
    unfinished = ""
    if steps := model_files.steps(directory / model_files.MODEL):
        if checkpoint not in ("reported", str(steps[-1])):
            raise CheckpointError(
                f"checkpoint={checkpoint}: {directory} holds only the model of step {steps[-1]}"
            )
        state = model_files.read(directory / model_files.MODEL, steps[-1], template, facts)
    else:
        stored = Checkpoints(
            directory / "checkpoints", lambda: template, warn, run=facts, writing=False
        )
        with closing(stored) as checkpoints:
            state = checkpoints.select(checkpoint, config.train.select)
        unfinished = workdir.unfinished(
            directory, int(state.step), reported=checkpoint == "reported"
        )
        if unfinished and checkpoint == "reported":
            warnings.warn(unfinished, stacklevel=4)  # the caller of `dml_jax.load`
    variables, names = (state.params, state.model_state), facts.get("class_names") or ()
    return TrainedModel(
        given, method, *variables, int(state.step), (height, width), names, unfinished
    )


def _load_published(directory: Path, checkpoint: str, dtype: str | None) -> TrainedModel:
    if checkpoint != "reported":
        raise CheckpointError(
            f"--checkpoint={checkpoint}: {directory} holds published weights, not checkpoints"
        )
    recorded = converted.read_metadata(directory)
    architecture = (
        recorded["architecture"]
        | {"pretrained": str(directory)}
        | ({"dtype": dtype} if dtype else {})
    )
    with files.reading(directory / converted.METADATA):
        backbone = validate(
            configs.module("backbone", architecture.get("name")).Config, architecture
        )
    side: int = min(
        recorded.get("image_shape", (LARGEST,))
    )  # the images that the weights were learned for
    if getattr(backbone, "fixed_size", False):
        side = min(LARGEST, side)
    resize = round(side / recorded.get("crop_fraction", 0.875))
    interpolation = recorded.get("interpolation", "bilinear")
    data = Data(
        name="folder", crop="centre", image_size=side, resize=resize, interpolation=interpolation
    )
    train = Train(groups={}, steps=1)
    config = Config(
        directory.name, data, backbone, None, train, evaluation=Evaluation(batch_size=BATCH)
    )
    method = computed_in(published_method(backbone), "float32")
    params, model_state = method.init(jax.random.key(0), zeros(1, (side, side)))
    return TrainedModel(config, method, params, model_state, 0, (side, side), ())


def published_method(config: Any) -> Method:
    """The network of a backbone's configuration as a method that cannot be trained.

    The embedding is the class token of a vision transformer, or the average of the feature map,
    scaled to unit length.
    """
    if "output" in (field.name for field in fields(config)):
        config = replace(config, output="class")
    backbone: Backbone = configs.module("backbone", config.name).build(config)

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, stats = backbone.init(key, (batch.images.shape[2], batch.images.shape[3]))
        return {"backbone": params}, {"backbone": stats}

    def embed(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        maps, _ = backbone.apply(
            params["backbone"], model_state["backbone"], backbone.preprocess(images), train=False
        )
        return numerics.unit(maps.mean(axis=(1, 2)))

    def untrained(*_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            f"backbone.pretrained={config.pretrained!r}: has no method, so it cannot be trained"
        )

    return Method(init, untrained, untrained, embed, groups=(), group=untrained)
