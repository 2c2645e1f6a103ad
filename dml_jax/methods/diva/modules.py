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
    """psi of one direction: maps an embedding of the source task to the target task, [B, D] -> [B, D]."""

    hidden_dim: int

    @nn.compact
    def __call__(self, embeddings: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(Dense(self.hidden_dim, name="hidden")(embeddings))
        return Dense(embeddings.shape[-1], name="output")(hidden)


class Encoded(NamedTuple):
    """Outputs of `Method.encode`, one row per image; optional ones are set in training, for the task that uses them."""

    features: jax.Array  # float [B, K], pooled features of the first views
    embeddings: dict[str, jax.Array]  # float [B, D] of unit length by task, of the first views
    # DaNCE: float [B, D] of unit length, selfsimilarity embeddings of the second views by the key network.
    keys: jax.Array | None = None
    # "spread": float [B, D] of unit length, selfsimilarity embeddings of the second views.
    second_views: jax.Array | None = None
    rotated: jax.Array | None = None  # "rotnet": float [B, K], pooled features of the rotated first views
    turns: jax.Array | None = None  # "rotnet": int [B], quarter turns of each image
