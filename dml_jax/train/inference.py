"""Embeddings of a whole split with a trained model."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dml_jax.data import pipeline
from dml_jax.data.split import Split
from dml_jax.train import mesh as meshes
from dml_jax.train.experiment import Experiment

Embedder = Callable[[Any, Any, jax.Array], jax.Array]


def compiled(experiment: Experiment, function: Embedder | None = None) -> Embedder:
    """A function of parameters, state and images, jitted: rows over the devices in, everything copied out.

    Args:
      experiment: devices and method.
      function: None for the method's `embed`.
    """
    mesh = experiment.mesh
    return jax.jit(
        function or experiment.method.embed,
        in_shardings=(meshes.copied(mesh), meshes.copied(mesh), meshes.rows(mesh)),
        out_shardings=meshes.copied(mesh),
    )


def split(
    experiment: Experiment,
    embedder: Embedder,
    params: Any,
    state: Any,
    images: Split,
    each: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Embeds every image of a split, in its order, each once.

    Args:
      experiment: data options and devices.
      embedder: from `compiled`.
      params: trained parameters.
      state: the method's state.
      images: the split.
      each: told after each batch how many images are done; may raise to give up.

    Returns:
      float32 [N, D].
    """
    devices = jax.device_count()
    size = -(-experiment.config.evaluation.batch_size // devices) * devices
    hosts, host = jax.process_count(), jax.process_index()
    mine = slice(host * size // hosts, (host + 1) * size // hosts)
    rows = []
    done = 0
    with pipeline.evaluation(images, experiment.config.data, size) as batches:
        for batch, valid in batches:
            put = jax.make_array_from_process_local_data(meshes.rows(experiment.mesh), batch[mine])
            rows.append(np.asarray(embedder(params, state, put), np.float32)[:valid])
            done += valid
            each(done)
    return np.concatenate(rows)
