"""A model for images of any size without a run behind it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.config import resolve
from dml_jax.data import transforms
from dml_jax.inference.model import Model
from dml_jax.methods.contract import Method
from dml_jax.seal import Identity
from dml_jax.train.distributed import device_mesh
from dml_jax.train.model import TrainedModel
from tests.train.experiments import values

SIDE, DIM = 16, 6


def identity(step: int) -> Identity:
    """A stand-in for the identity of a model."""
    return Identity({"step": step}, f"variables {step}")


class Tiny(Model):
    """A trained model but for its network: a random projection of the pixels.

    Attributes:
      compiled: shapes of the batches for which a program was compiled.
    """

    def __init__(self, seed: int = 0, batch: int = 4):
        self.compiled: list[tuple[int, ...]] = []
        data = {"name": "folder", "crop": "centre", "resize": 20, "image_size": SIDE}
        config = resolve(values(steps=1) | {"data": data, "evaluation": {"batch_size": batch}})
        self.matrix = np.random.default_rng(seed).normal(size=(SIDE * SIDE * 3, DIM)).astype(np.float32)
        nothing: Any = None
        method = Method(nothing, nothing, nothing, self._project, groups=(), group=nothing)
        params, model_state = device_mesh.place(device_mesh.make(), ({"matrix": self.matrix}, {}))
        self._use(TrainedModel(config, method, params, model_state, 1, (SIDE, SIDE), ()))

    def _project(self, params: Any, model_state: Any, images: jax.Array, /) -> jax.Array:
        self.compiled.append(images.shape)
        rows = images.reshape(len(images), -1).astype(jnp.float32) @ params["matrix"]
        return rows / (jnp.linalg.norm(rows, axis=1, keepdims=True) + 1e-20)  # finite for the blanks of bad images

    def expected(self, images: list[np.ndarray]) -> np.ndarray:
        """The embeddings of images, in float64 without JAX."""
        transform = transforms.evaluation(self.config.data)
        crops = np.stack([transform(image) for image in images]).reshape(len(images), -1)
        rows = crops.astype(np.float64) @ self.matrix.astype(np.float64)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
