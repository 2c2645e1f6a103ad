"""A trained model for inference by JAX; needs the work directory of a run but not its data set."""

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dml_jax import config as configs
from dml_jax.config.sections import OF_ANY_SIZE
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError, DataError
from dml_jax.inference.embedding_model import EmbeddingModel, is_run, locate
from dml_jax.inference.index import Images
from dml_jax.methods.contract import PyTree, teaching
from dml_jax.train import embedding, step
from dml_jax.train import model as models
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.embedding import Embedder
from dml_jax.train.model import TrainedModel

__all__ = ["Classification", "Model", "is_run", "locate"]


class Classification(NamedTuple):
    """N images among the C training classes.

    Attributes:
      names: the best class of each image.
      logits: float32 [N, C], without margins; cosines to the nearest proxy of each class where the loss has proxies but
        no logits, as Proxy-Anchor.
      classes: the name of each column.
    """

    names: list[str]
    logits: np.ndarray
    classes: list[str]


class Model(EmbeddingModel):
    """The trained embedding of a run, or a published network as it is; arguments as of `dml_jax.load`.

    Attributes:
      config: of the run.
      trained: configuration, pure functions and variables.
    """

    runtime = "jax"
    added: tuple[bool, tuple[float, ...]] = (False, (1.0,))

    def __init__(
        self,
        model: str | Path,
        checkpoint: str = "reported",
        *,
        trust_code: bool = False,
        flip: bool = False,
        scales: tuple[float, ...] = (1.0,),
    ):
        self.directory = locate(model)
        trained = models.load(self.directory, checkpoint, trust_code=trust_code)
        scales = tuple(map(float, scales))  # the fingerprint spells them
        if scales != (1.0,) and not OF_ANY_SIZE.holds(trained.config):
            raise ConfigError(f"scales={scales}: need {OF_ANY_SIZE.what}")
        self.added = (flip, scales)
        embed = embedding.averaged(trained.method.embed, flip=flip, scales=scales)
        everywhere = meshes.replicated(meshes.make())
        params, model_state = jax.device_put((trained.params, trained.model_state), everywhere)
        method = trained.method._replace(embed=embed)
        self._use(trained._replace(method=method, params=params, model_state=model_state))

    def _use(self, trained: TrainedModel) -> None:
        self.trained, self._embedder = trained, trained.embedder(few=True)
        self.config, self.step, self.shape = trained.config, trained.step, trained.shape
        self.finished, self.data = not trained.unfinished, trained.config.data
        self.distance = trained.method.distance

    @cached_property
    def config_hash(self) -> str:  # type: ignore[override]
        """SHA-256 of the configuration."""
        return configs.digest(self.config)

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """SHA-256 of all parameters and of the model state; with the versions of an image if several are averaged."""
        variables = step.fingerprint((self.trained.params, self.trained.model_state))
        return variables if self.added == (False, (1.0,)) else f"{variables} {self.added}"

    def classify(self, images: Images) -> Classification:
        """Scores of images for the classes that a run was trained on; for other classes, see `enroll`."""
        classifier, classes = self._classifier, list(self.trained.classes)
        compute, stream = partial(classifier.embed, self.trained), partial(classifier.stream, self.trained)
        logits = self._outputs(images, compute, stream)
        return Classification([classes[best] for best in logits.argmax(axis=1)], logits, classes)

    @cached_property
    def _classifier(self) -> Embedder:
        """Scores of images for the training classes."""
        method, count = self.trained.method, len(self.trained.classes)
        remedy = "enroll classes instead, or train with a classifier such as method.loss=arcface"
        if not count:
            raise DataError(f"{self.directory}: published weights have no classifier; {remedy}")

        def of_classifier(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array | None:
            return teaching(method)(params, model_state, images).logits

        def outputs(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
            if (logits := of_classifier(params, model_state, images)) is None:
                assert method.hooks.scores is not None
                encoded, _ = method.encode(params, model_state, images[None], train=False)
                logits = method.hooks.scores(params, encoded)
            return logits[:, :count]  # tables of classes may be padded

        image, variables = jax.ShapeDtypeStruct((1, *self.shape, 3), np.uint8), self.trained[2:4]
        if method.hooks.scores is None and jax.eval_shape(of_classifier, *variables, image) is None:
            loss = getattr(self.config.method, "loss", self.config.method.name)
            raise DataError(f"{self.directory}: was trained with {loss}, which learns no classifier; {remedy}")
        return self.trained._replace(method=method._replace(embed=outputs)).embedder(few=True)

    def _stream(self, read: Any, groups: Any, **options: Any) -> Iterator[np.ndarray]:
        return self._embedder.stream(self.trained, read, groups, **options)

    def embed_split(self, split: Split) -> np.ndarray:
        """Embeds the images of a split, float32 [N, D]."""
        return self._embedder.embed_split(self.trained, split)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""
        return self._embedder.embed(self.trained, pixels)
