"""A trained model for inference by JAX; needs the work directory of a run but not its data set."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.config import config_digest
from dml_jax.config.sections import OF_ANY_SIZE
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError
from dml_jax.inference.embedding_model import EmbeddingModel, locate
from dml_jax.train import embedding, step
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
        everywhere = device_mesh.replicated(device_mesh.make())
        params, model_state = jax.device_put((trained.params, trained.model_state), everywhere)
        method = trained.method._replace(embed=embed)
        self._use(trained._replace(method=method, params=params, model_state=model_state))

    def _use(self, trained: TrainedModel) -> None:
        self.trained, self._embedder = trained, trained.embedder(few=True)
        self.config, self.step, self.shape = trained.config, trained.step, trained.shape
        self.finished, self.data = not trained.unfinished, trained.config.data
        self.method_distance = trained.method.distance != "cosine"

    @cached_property
    def config_hash(self) -> str:  # type: ignore[override]
        """SHA-256 of the configuration."""
        return config_digest(self.config)

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """SHA-256 of all parameters and of the model state; with the versions of an image if
        several are averaged."""
        variables = step.fingerprint((self.trained.params, self.trained.model_state))
        return variables if self.added == (False, (1.0,)) else f"{variables} {self.added}"

    def _stream(self, read: Any, groups: Any, **options: Any) -> Iterator[np.ndarray]:
        return self._embedder.stream(self.trained, read, groups, **options)

    def embed_split(self, split: Split) -> np.ndarray:
        """Embeds the images of a split, float32 [N, D]."""
        return self._embedder.embed_split(self.trained, split)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""
        return self._embedder.embed(self.trained, pixels)
