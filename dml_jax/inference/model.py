"""A trained model for inference by JAX; needs the work directory of a run but not its data set."""

import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.config.sections import ANY_SIZE
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError
from dml_jax.identity import Versions
from dml_jax.inference.embedding_model import EmbeddingModel, locate
from dml_jax.seal import Identity
from dml_jax.train import embedding
from dml_jax.train import model as models
from dml_jax.train.distributed import device_mesh
from dml_jax.train.model import TrainedModel


class Model(EmbeddingModel):
    """The trained embedding of a run, or a published network; arguments as of `dml_jax.load`.

    Attributes:
      config: the configuration of the run.
      trained: configuration, pure functions and variables.
    """

    runtime = "jax"

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
        versions = Versions.of(flip, scales)
        if versions.scales != (1.0,) and getattr(trained.config.backbone, "fixed_size", False):
            raise ConfigError(f"scales={versions.scales}: need {ANY_SIZE}")
        embed = embedding.averaged(trained.method.embed, *versions)
        everywhere = device_mesh.replicated(device_mesh.make())
        params, model_state = jax.device_put((trained.params, trained.model_state), everywhere)
        if versions != Versions():
            trained = trained._replace(versions=versions, stored=None)
        method = trained.method._replace(embed=embed)
        self._use(trained._replace(method=method, params=params, model_state=model_state))

    def _use(self, trained: TrainedModel) -> None:
        self.trained, self._embedder = trained, trained.embedder(few=True)
        self.config, self.step, self.shape = trained.config, trained.step, trained.shape
        self.finished, self.data = not trained.unfinished, trained.config.data
        self.method_distance = trained.method.distance != "cosine"
        self.versions, self._unproved = trained.versions, trained.stored

    @cached_property
    def identity(self) -> Identity:  # type: ignore[override]
        """What its embedding function is; computed unless its directory states it."""
        return self.trained.identity(few=True)

    def _prove(self, count: int) -> None:
        """Computes a row of the probe before the first batch, by the program for that batch."""
        self._check_probe(
            lambda image: np.asarray(self._embedder.start(self.trained, image, count), np.float32)
        )

    def _stream(self, read: Any, groups: Any, **options: Any) -> Iterator[np.ndarray]:
        following = iter(groups)
        for first in itertools.islice(following, 1):
            self._prove(min(len(first), self._embedder.batch_size))
            whole = itertools.chain([first], following)
            yield from self._embedder.stream(self.trained, read, whole, **options)

    def embed_split(self, split: Split) -> np.ndarray:
        """Embeds the images of a split, float32 [N, D]."""
        self._prove(min(len(split.labels), self._embedder.batch_size))
        return self._embedder.embed_split(self.trained, split)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""
        self._prove(len(pixels))
        return self._embedder.embed(self.trained, pixels)
