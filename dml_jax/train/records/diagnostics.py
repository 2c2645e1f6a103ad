"""Health of the training: statistics of a batch's embeddings, logged with every line of `metrics.jsonl`.

Measured after the update, on the images of the same batch, embedded as in a test. A separate program computes them, so
that the training step and every bit of its results stay the same. The values depend on the state and the batch alone: a
resumed run writes the same ones.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dml_jax.console import Console
from dml_jax.evaluation import geometry
from dml_jax.methods.contract import Batch, Method, PyTree
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.state import TrainState
from dml_jax.train.step import in_chunks

PREFIX = "health/"
QUANTILES = (10, 50, 90)  # of the distances, in percent
COLLAPSED_DISTANCE = 0.02  # between unit vectors, which are at most 2 apart
COLLAPSED_RANK = 1.1
LARGE_DRIFT = 0.5  # of the length of a proxy, in one step


class Monitor:
    """Measures the health of a run, in `chunks` parts of a batch, and prints a warning when a problem appears."""

    def __init__(self, method: Method, mesh: Mesh, chunks: int, console: Console):
        self._console = console
        self._shown: set[str] = set()

        def observe(
            params: PyTree, model_state: PyTree, batch: Batch, before: jax.Array | None
        ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
            values = {}
            if method.hooks.proxies is not None and before is not None:
                values["proxy_drift"] = relative_drift(before, method.hooks.proxies(params))
            embed = partial(method.embed, params, model_state)
            return in_chunks(embed, chunks, batch.images[0]), batch.labels, values

        self._observe = jax.jit(observe, out_shardings=meshes.replicated(mesh))
        # A copy, because the training step donates the state.
        proxies = method.hooks.proxies
        self._proxies = jax.jit(lambda params: jnp.copy(proxies(params))) if proxies else None

    def proxies(self, state: TrainState) -> jax.Array | None:
        """What `measure` compares with: the proxies before an update; None if the method has none."""
        return self._proxies(state.params) if self._proxies else None

    def compile(self, state: TrainState, batch: Batch) -> None:
        """Measures once without a result, so that the first line of metrics does not wait for the compiler."""
        jax.block_until_ready(self._run(state, batch, self.proxies(state)))

    def _run(self, state: TrainState, batch: Batch, before: jax.Array | None) -> Any:
        return self._observe(state.params, state.model_state, batch._replace(teacher=None), before)

    def measure(self, state: TrainState, batch: Batch, before: jax.Array | None, grad_norm: float) -> dict[str, Any]:
        """The entries for a line of metrics after an update; prints warnings that the line before did not have.

        `before` is what `proxies` returned before the update. Names of numbers start with `PREFIX`; "warnings", from
        `problems`, is present if there are any.
        """
        embeddings, labels, values = jax.device_get(self._run(state, batch, before))
        numbers = summary(embeddings, labels) | {name: float(value) for name, value in values.items()}
        found = problems(numbers, grad_norm)
        for name in found.keys() - self._shown:
            self._console.warn(f"step {int(state.step)}: {found[name]}")
        self._shown = set(found)
        line: dict[str, Any] = {f"{PREFIX}{name}": value for name, value in numbers.items()}
        return line | ({"warnings": found} if found else {})


def relative_drift(before: jax.Array, after: jax.Array) -> jax.Array:
    """Mean of |after - before| / |before| over rows [P, K]; rows of zeros count with their new length."""
    length = jnp.linalg.norm(before, axis=1)
    return jnp.mean(jnp.linalg.norm(after - before, axis=1) / jnp.where(length > 0, length, 1))


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
    """What is wrong, in one sentence each, by name; empty if the training looks healthy.

    `numbers` are those of `summary`, with "proxy_drift" where known.
    """
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
    if (drift := numbers.get("proxy_drift", 0.0)) > LARGE_DRIFT:
        found["proxies"] = (
            f"the proxies move by {drift:.0%} of their length in one step; lower the learning rate of their group"
        )
    return found
