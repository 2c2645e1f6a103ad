"""Health of the training: statistics of a batch's embeddings, logged with every line of `metrics.jsonl`.

Measured after the update, on the images of the same batch, embedded as in a test. A separate program computes them, so
that the training step and every bit of its results stay the same. The values depend on the state and the batch alone.
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dml_jax.console import Console
from dml_jax.evaluation import geometry
from dml_jax.methods.contract import Batch, Method, PyTree
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.step import TrainState, in_chunks

PREFIX = "health/"
QUANTILES = (10, 50, 90)  # of the distances, in percent
COLLAPSED_DISTANCE = 0.02  # between unit vectors, which are at most 2 apart
COLLAPSED_RANK = 1.1


class Monitor:
    """Measures the health of a run, in `chunks` parts of a batch, and prints a warning when a problem appears."""

    def __init__(self, method: Method, mesh: Mesh, chunks: int, console: Console):
        self._console = console
        self._shown: set[str] = set()

        def embed(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
            rows: jax.Array = in_chunks(partial(method.embed, params, model_state), chunks, images)
            return rows

        self._embed = jax.jit(embed, out_shardings=meshes.replicated(mesh))

    def embed(self, state: TrainState, batch: Batch) -> jax.Array:
        """The embeddings of the batch [B, D]."""
        return self._embed(state.params, state.model_state, batch.images[0])

    def measure(self, state: TrainState, batch: Batch, grad_norm: float) -> dict[str, Any]:
        """The entries for a line of metrics after an update; prints warnings that the line before did not have."""
        labels = meshes.to_host(batch.labels)
        numbers = summary(np.asarray(self.embed(state, batch)), labels)
        found = problems(numbers, grad_norm)
        for name in found.keys() - self._shown:
            self._console.warn(f"step {int(state.step)}: {found[name]}")
        self._shown = set(found)
        line: dict[str, Any] = {f"{PREFIX}{name}": value for name, value in numbers.items()}
        return line | ({"warnings": found} if found else {})


def summary(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Statistics of a batch of unit vectors [B, D] with labels int [B].

    "same_pP" and "different_pP" are the P-th percentiles of the Euclidean distances of pairs of one class and of
    different classes, where the batch has such pairs.
    """
    x = np.asarray(embeddings, np.float64)
    squares = np.sum(x**2, axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * x @ x.T, 0))
    once = np.triu(np.ones(distances.shape, bool), 1)
    same = labels[:, None] == labels[None, :]
    numbers: dict[str, float] = {}
    for name, pairs in (("same", distances[once & same]), ("different", distances[once & ~same])):
        if pairs.size:
            found = np.percentile(pairs, QUANTILES)
            numbers |= {f"{name}_p{q}": float(value) for q, value in zip(QUANTILES, found, strict=True)}
    return numbers | {"effective_rank": geometry.effective_rank(x)}


def problems(numbers: dict[str, float], grad_norm: float) -> dict[str, str]:
    """One sentence by name for each problem that the numbers of `summary` show."""
    found = {}
    if (distance := numbers.get("different_p90", 2.0)) < COLLAPSED_DISTANCE:
        found["distance"] = (
            f"the embeddings have collapsed to a point: 90 % of the pairs of different classes are closer than "
            f"{distance:.2g} (unit vectors are up to 2 apart); lower the learning rates, or choose another loss, "
            "margin or miner"
        )
    elif (rank := numbers["effective_rank"]) < COLLAPSED_RANK:
        found["rank"] = (
            f"the embeddings have collapsed to a line: their effective rank is {rank:.2f}; lower the learning rates or "
            "the weight decay"
        )
    if grad_norm == 0:
        found["gradient"] = "the gradient is zero, so the network does not change"
    return found
