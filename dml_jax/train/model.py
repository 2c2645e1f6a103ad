"""From a directory to a trained model: a run's, or published weights."""

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

LARGEST = 224  # side in pixels of the images that published networks of fixed size get
BATCH = 32  # images that published weights embed at once


class TrainedModel(NamedTuple):
    """A trained model without its data."""

    config: Config
    method: Method
    params: PyTree
    model_state: PyTree
    step: int  # number of updates; 0 for published weights
    shape: Shape  # (H, W) in pixels of the images that the network sees
    classes: Sequence[str]  # names of the training classes; empty for published weights
    unfinished: str = ""  # says that the run has not finished; empty if it has
    variant: str = ""  # the entry of `evaluation.test_variants` that it embeds with
    versions: Versions = Versions()  # of an image, whose embeddings `method` averages
    stored: Identity | None = None  # the identity in its directory, which is this model's

    def embedder(self, *, few: bool = False) -> Embedder:
        """Its embedding, compiled for `evaluation.batch_size`; for `few` see `Embedder`."""
        return embedding.compiled(
            self.method.embed, self.config, device_mesh.make(), self.shape, few=few
        )

    def identity(self, *, few: bool = False) -> Identity:
        """What its embedding function is, with a row of the probe; all processes must ask.

        With `few`, no program for whole batches is compiled, which other uses of the model need.
        """
        if self.stored:
            return self.stored
        images = identity.probe(self.config.data, self.shape)[:1]
        (rows,) = self.embedder(few=few).stream(self, images.__getitem__, [range(1)])
        return self._identified(rows[0])

    def _identified(self, row: np.ndarray | None = None) -> Identity:
        """The identity with this row of the probe, or without it."""
        config = self.config
        if self.variant:
            config = with_test_variant(config, self.variant)
        description = identity.described(
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
        """The model with the identity in its directory, which must be this model's."""
        stated = seal.stated(directory, kind, error=CheckpointError, remedy=remedy)
        if stated.identity is None:
            raise CheckpointError(f"{directory}: does not say what its model computes; {remedy}")
        here = self._identified()
        if stated.identity.pixels != here.pixels:
            remedy = identity.OTHER_LIBRARIES
        seal.check_identity(
            stated.identity, here, str(directory), error=CheckpointError, remedy=remedy
        )
        return self._replace(stored=stated.identity)


def with_test_variant(config: Config, variant: str) -> Config:
    """The configuration with the options of one of `evaluation.test_variants`.

    Raises ConfigError unless they are options of the method that act on embeddings only.
    """
    key, options = f"evaluation.test_variants.{variant}", config.evaluation.test_variants[variant]
    kind = type(config.method)
    names = [option.name for option in fields(kind)]
    known = [name for name in names if effect(kind, name) is Effect.EMBEDDING]
    for option in (option for option in options if option not in known):
        allowed = f"only of {', '.join(known)}" if known else "of no option"
        raise ConfigError(f"{key}.{option}: method {config.method.name} allows variants {allowed}")
    return replace(config, method=validate(kind, asdict(config.method) | options, key))


def reading_in_results(config: Config, directory: Path) -> str:
    """The entry of `evaluation.test_variants` that the results of a run report, or ""."""
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
    """The model of a run, or published weights; warns if the reported model's run is unfinished.

    Args:
      directory: a work directory, a model pulled by `export.hub`, or converted weights.
      checkpoint: "reported", "latest", "best", a step or, with train.select="folds", a candidate.
      warn: called with each damaged checkpoint before an earlier one is read; None to raise
        instead.
      dtype: of the activations, instead of the configuration's.
      trust_code: as in `dml_jax.load`.
    """
    if (directory / converted.METADATA).exists():
        return _load_published(directory, checkpoint, dtype)
    # Slow to import, and not needed for published weights.
    from dml_jax.train.checkpoint import Checkpoints

    facts = workdir.read_config(directory)
    given = workdir.run_config(directory, trust_code=trust_code)
    # The variables come from the checkpoint, so the weights that the run started from may be gone.
    backbone = with_precision(replace(given.backbone, pretrained="none"), dtype)
    config = replace(given, backbone=backbone)
    if name := reading_in_results(config, directory):
        config = with_test_variant(config, name)
    train, shape = config.train, tuple(facts["shape"])
    method = build_method(config, TrainingSet(facts["classes"], facts["images"]))
    optimizer = optimizers.build(train, method, lambda step: 1.0, warmup_steps=train.warmup_epochs)
    template = step.state_shapes(config, method, optimizer, shape, device_mesh.make())
    unfinished, single = "", directory / model_files.DIRECTORY
    if single.exists():
        state = model_files.read(single, template, facts)
        if checkpoint not in ("reported", str(int(state.step))):
            raise CheckpointError(
                f"checkpoint={checkpoint}: {directory} holds only the model of step {state.step}"
            )
    else:
        stored = Checkpoints(
            directory / "checkpoints", lambda: template, warn, run=facts, writing=False
        )
        with closing(stored):
            state = stored.restore_selected(checkpoint, train.select)
        reported = checkpoint == "reported"
        unfinished = workdir.unfinished(directory, int(state.step), reported=reported)
        if unfinished and reported:
            warnings.warn(unfinished, stacklevel=4)  # the caller of `dml_jax.load`
    variables, names = (state.params, state.model_state), facts.get("class_names") or ()
    made = TrainedModel(
        replace(given, backbone=with_precision(given.backbone, dtype)),
        *(method, *variables, int(state.step), shape, names, unfinished, name),
    )
    reported = workdir.read_results(directory).get("step") == made.step
    if train.select == "folds":  # the kept model has the step of the last one
        reported = reported and checkpoint in ("reported", "best")
    same = made.config.backbone == given.backbone
    return made.checked(directory, workdir.KIND, seal.REMEDY) if reported and same else made


def _load_published(directory: Path, checkpoint: str, dtype: str | None) -> TrainedModel:
    if checkpoint != "reported":
        raise CheckpointError(
            f"--checkpoint={checkpoint}: {directory} holds published weights, not checkpoints"
        )
    return _published(directory, dtype).checked(directory, converted.KIND, converted.REMEDY)


def identify(directory: Path) -> Identity:
    """The identity of newly converted weights."""
    return _published(directory, None).identity(few=True)


def _published(directory: Path, dtype: str | None) -> TrainedModel:
    recorded = converted.read_metadata(directory)
    architecture = recorded["architecture"] | {"pretrained": str(directory)}
    architecture |= {"dtype": dtype} if dtype else {}
    with files.reading(directory / converted.METADATA):
        options = plugin_module("backbone", architecture.get("name")).Config
        backbone = validate(options, architecture)
    side: int = min(recorded.get("image_shape", (LARGEST,)))  # side of the images in pretraining
    if getattr(backbone, "fixed_size", False):
        side = min(LARGEST, side)
    data = Data(
        name="folder",
        crop="centre",
        image_size=side,
        resize=round(side / recorded.get("crop_fraction", 0.875)),
        interpolation=recorded.get("interpolation", "bilinear"),
    )
    train, evaluation = Train(groups={}, steps=1), Evaluation(batch_size=BATCH)
    config = Config(directory.name, data, backbone, None, train, evaluation=evaluation)
    method = computed_in(published_method(backbone), "float32")
    params, model_state = method.init(jax.random.key(0), zeros(1, (side, side)))
    return TrainedModel(config, method, params, model_state, 0, (side, side), ())


def published_method(config: Any) -> Method:
    """The network of a backbone's configuration as a method that cannot be trained.

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
            f"backbone.pretrained={config.pretrained!r}: has no method, so it cannot be trained"
        )

    return Method(init, untrained, untrained, embed, groups=(), group=untrained)
