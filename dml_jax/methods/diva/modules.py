"""The linear layers of DiVA, and their outputs for each image."""

from collections.abc import Sequence
from typing import NamedTuple

import flax.linen as nn
import jax

from dml_jax.backbones.layers import Dense
from dml_jax.numerics import unit


class Heads(nn.Module):
    """The embedding layer of each task."""

    tasks: Sequence[str]
    dim: int

    @nn.compact
    def __call__(self, features: jax.Array) -> dict[str, jax.Array]:
        """Pooled features [B, K] -> embeddings [B, dim] of unit length by task."""
        return {task: unit(Dense(self.dim, name=task)(features)) for task in self.tasks}


class Psi(nn.Module):
    """psi of one direction: maps the embedding of the source task to that of the target task, [B, D] -> [B, D]."""

    hidden_dim: int

    @nn.compact
    def __call__(self, embeddings: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(Dense(self.hidden_dim, name="hidden")(embeddings))
        return Dense(embeddings.shape[-1], name="output")(hidden)


class Encoded(NamedTuple):
    """Outputs of `Method.encode` for each image; optional fields are set only in training, for the task that uses them.

    Attributes:
      features: float [B, K], pooled features of the first views.
      embeddings: float [B, D] of unit length by task, of the first views.
      keys: DaNCE: float [B, D] of unit length, selfsimilarity embeddings of the second views by the key network.
      second_views: "spread": float [B, D] of unit length, selfsimilarity embeddings of the second views.
      rotated: "rotnet": float [B, K], pooled features of the rotated first views.
      turns: "rotnet": int [B], quarter turns of each image.
    """

    features: jax.Array
    embeddings: dict[str, jax.Array]
    keys: jax.Array | None = None
    second_views: jax.Array | None = None
    rotated: jax.Array | None = None
    turns: jax.Array | None = None
