"""Loads a trained model from the directory of a run or of published weights."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from dml_jax import files, identity, numerics, seal
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.weights import converted
from dml_jax.config import Config, Data, Evaluation, Train, plugin_module
from dml_jax.config.fields import Effect, effect, validate, with_precision
from dml_jax.data.arrays import Shape
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.evaluation import user_distances
from dml_jax.identity import Versions
from dml_jax.methods.contract import Batch, Method, PyTree, TrainingSet, zeros
from dml_jax.seal import Identity
from dml_jax.train import embedding, optimizers, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.embedding import Embedder
from dml_jax.train.method_wrappers import build_method, computed_in
from dml_jax.train.records import model_files, workdir

LARGEST = 224  # largest image side, in pixels, for published networks of fixed size
BATCH = 32  # images per batch for published weights


class TrainedModel(NamedTuple):
    """A trained model without its data."""

    config: Config
    method: Method
    params: PyTree
    model_state: PyTree
    step: int  # number of training steps; 0 for published weights
    shape: Shape  # (H, W) of the network's input images in pixels
    classes: Sequence[str]  # names of the training classes; empty for published weights
    unfinished: str = ""  # a warning if the run has not finished, otherwise empty
    variant: str = ""  # its entry of `evaluation.test_variants`, if any
    versions: Versions = Versions()  # over which `method` averages
    stored: Identity | None = None  # the verified identity from its directory

    def embedder(self, *, few: bool = False) -> Embedder:
        """Its embedding, compiled for `evaluation.batch_size`; for `few`, see `Embedder`."""
        return embedding.compiled(
            self.method.embed, self.config, device_mesh.make(), self.shape, few=few
        )

    def identity(self, *, few: bool = False) -> Identity:
        """The identity of its embedding function; all processes must call this.

        With `few`, this does not compile a program for whole batches, which other uses need.
        """
        if self.stored:
            return self.stored
        images = identity.probe(self.config.data, self.shape)[:1]
        (rows,) = self.embedder(few=few).stream(self, images.__getitem__, [range(1)])
        return self._identified(rows[0])

    def _identified(self, row: np.ndarray | None = None) -> Identity:
        """The identity, with this embedding of the probe if it is known."""
        config = self.config
        if self.variant:
            config = with_test_variant(config, self.variant)
        description = identity.describe(
            config.data,
            self.shape,
            config.backbone,
            config.method,
            self.versions,
            precision=config.train.precision,
            distance=user_distances.name_of(self.method.distance),
            step=self.step,
        )
        digest = step.digest((self.params, self.model_state))
        return identity.with_probe(description, digest, config.data, self.shape, row)

    def checked(self, directory: Path, kind: str, remedy: str) -> "TrainedModel":
        """The model with the identity from its directory; CheckpointError if it does not match."""
        manifest = seal.read_manifest(directory, kind, error=CheckpointError, remedy=remedy)
        if manifest.identity is None:
            raise CheckpointError(
                f"{directory}: does not record the identity of its model; {remedy}"
            )
        own = self._identified()
        if manifest.identity.pixels != own.pixels:
            remedy = identity.OTHER_LIBRARIES
        seal.check_identity(
            manifest.identity, own, str(directory), error=CheckpointError, remedy=remedy
        )
        return self._replace(stored=manifest.identity)


def with_test_variant(config: Config, variant: str) -> Config:
    """The configuration with the options of one of `evaluation.test_variants`.

    Raises ConfigError unless these options of the method only affect embeddings.
    """
    key, options = f"evaluation.test_variants.{variant}", config.evaluation.test_variants[variant]
    kind = type(config.method)
    names = [option.name for option in fields(kind)]
    allowed_names = [name for name in names if effect(kind, name) is Effect.EMBEDDING]
    for option in (option for option in options if option not in allowed_names):
        remedy = f"only of {', '.join(allowed_names)}" if allowed_names else "of no option"
        raise ConfigError(f"{key}.{option}: method {config.method.name} allows variants {remedy}")
    return replace(config, method=validate(kind, asdict(config.method) | options, key))


def reading_in_results(config: Config, directory: Path) -> str:
    """The entry of `evaluation.test_variants` that the results of a run report; empty if none."""
    name = workdir.read_results(directory).get("test_variant")
    return name if name in config.evaluation.test_variants else ""


def load(
    directory: Path,
    checkpoint: str = "reported",
    warn: Callable[[str], None] | None = None,
    *,
    dtype: str | None = None,
    trust_code: bool = False,
) -> TrainedModel:
    """Loads the model of a run or published weights; warns if the run has not finished.

    Args:
      directory: a work directory, a model downloaded by `export.hub`, or converted weights.
      checkpoint: "reported", "latest", "best", a step or, with train.select="folds", a candidate.
      warn: called with a message for each damaged checkpoint that is skipped; None: raise instead.
      dtype: replaces the `dtype` of activations in the configuration.
      trust_code: as in `dml_jax.load`.
    """
    if (directory / converted.METADATA).exists():
        return _load_published(directory, checkpoint, dtype)
    # Slow to import, and not needed for published weights.
    from dml_jax.train.checkpoint import Checkpoints

    record = workdir.read_config(directory)
    stored_config = workdir.run_config(directory, trust_code=trust_code)
    # The variables come from the checkpoint, so the initial weights may no longer exist.
    backbone = with_precision(replace(stored_config.backbone, pretrained="none"), dtype)
    config = replace(stored_config, backbone=backbone)
    if name := reading_in_results(config, directory):
        config = with_test_variant(config, name)
    train, shape = config.train, tuple(record["shape"])
    method = build_method(config, TrainingSet(record["classes"], record["images"]))
    optimizer = optimizers.build(train, method, lambda step: 1.0, warmup_steps=train.warmup_epochs)
    template = step.state_shapes(config, method, optimizer, shape, device_mesh.make())
    unfinished, model_folder = "", directory / model_files.DIRECTORY
    if model_folder.exists():
        state = model_files.read(model_folder, template, record)
        if checkpoint not in ("reported", str(int(state.step))):
            raise CheckpointError(
                f"checkpoint={checkpoint}: {directory} contains only the model of step {state.step}"
            )
    else:
        stored = Checkpoints(
            directory / "checkpoints", lambda: template, warn, run=record, writing=False
        )
        with closing(stored):
            state = stored.restore_selected(checkpoint, train.select)
        reported = checkpoint == "reported"
        unfinished = workdir.unfinished(directory, int(state.step), reported=reported)
        if unfinished and reported:
            warnings.warn(unfinished, stacklevel=4)  # the caller of `dml_jax.load`
    variables, names = (state.params, state.model_state), record.get("class_names") or ()
    model = TrainedModel(
        replace(stored_config, backbone=with_precision(stored_config.backbone, dtype)),
        *(method, *variables, int(state.step), shape, names, unfinished, name),
    )
    reported = workdir.read_results(directory).get("step") == model.step
    if train.select == "folds":  # the selected model has the step of the last one
        reported = reported and checkpoint in ("reported", "best")
    unchanged = model.config.backbone == stored_config.backbone
    return model.checked(directory, workdir.KIND, seal.REMEDY) if reported and unchanged else model


def _load_published(directory: Path, checkpoint: str, dtype: str | None) -> TrainedModel:
    if checkpoint != "reported":
        raise CheckpointError(
            f"--checkpoint={checkpoint}: {directory} contains published weights, not checkpoints"
        )
    return _published(directory, dtype).checked(directory, converted.KIND, converted.REMEDY)


def identify(directory: Path) -> Identity:
    """Computes the identity of newly converted weights."""
    return _published(directory, None).identity(few=True)


def _published(directory: Path, dtype: str | None) -> TrainedModel:
    metadata = converted.read_metadata(directory)
    architecture = metadata["architecture"] | {"pretrained": str(directory)}
    architecture |= {"dtype": dtype} if dtype else {}
    with files.reading(directory / converted.METADATA):
        options = plugin_module("backbone", architecture.get("name")).Config
        backbone = validate(options, architecture)
    side: int = min(metadata.get("image_shape", (LARGEST,)))  # side of the images in pretraining
    if getattr(backbone, "fixed_size", False):
        side = min(LARGEST, side)
    data = Data(
        name="folder",
        crop="centre",
        image_size=side,
        resize=round(side / metadata.get("crop_fraction", 0.875)),
        interpolation=metadata.get("interpolation", "bilinear"),
    )
    train, evaluation = Train(groups={}, steps=1), Evaluation(batch_size=BATCH)
    config = Config(directory.name, data, backbone, None, train, evaluation=evaluation)
    method = computed_in(published_method(backbone), "float32")
    params, model_state = method.init(jax.random.key(0), zeros(1, (side, side)))
    return TrainedModel(config, method, params, model_state, 0, (side, side), ())


def published_method(config: Any) -> Method:
    """The network of a backbone's configuration as a method that cannot train.

    The embedding is the class token of a vision transformer, or the average of the feature map,
    scaled to unit length.
    """
    if hasattr(config, "output"):
        config = replace(config, output="class")
    backbone: Backbone = plugin_module("backbone", config.name).build(config)

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, stats = backbone.init(key, (batch.images.shape[2], batch.images.shape[3]))
        return {"backbone": params}, {"backbone": stats}

    def embed(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        variables = params["backbone"], model_state["backbone"]
        maps, _ = backbone.apply(*variables, backbone.preprocess(images), train=False)
        return numerics.unit(maps.mean(axis=(1, 2)))

    def untrained(*_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            f"backbone.pretrained={config.pretrained!r}: has no method, so it cannot train"
        )

    return Method(init, untrained, untrained, embed, groups=(), group=untrained)
