"""Embeddings of a whole split with a trained model."""

from collections.abc import Callable

import jax
import numpy as np

from dml_jax.data import pipeline
from dml_jax.data.split import Split
from dml_jax.methods.contract import Embed
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState


def compile_embedder(experiment: Experiment, function: Embed | None = None) -> Embed:
    """A jitted function of (params, model_state, images), with images split over the devices and replicated results.

    Args:
      experiment: its mesh and method.
      function: None for the method's `embed`.
    """
    mesh, state = experiment.mesh, experiments.state_shardings(experiment)
    return jax.jit(
        function or experiment.method.embed,
        in_shardings=(state.params, state.model_state, meshes.row_sharded(mesh)),
        out_shardings=meshes.replicated(mesh),
    )


def embed_split(
    experiment: Experiment,
    embedder: Embed,
    state: TrainState,
    split: Split,
    on_progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Embeds every image of a split once, in order; each process reads its share of every batch.

    Args:
      experiment: its data options and mesh.
      embedder: from `compile_embedder`.
      state: the model.
      split: the images.
      on_progress: called after each batch with the number of images done; may raise to stop.

    Returns:
      float32 [N, D].
    """
    devices = jax.device_count()
    size = -(-experiment.config.evaluation.batch_size // devices) * devices
    rows: list[np.ndarray] = []
    done = 0
    hosts = {"host": jax.process_index(), "hosts": jax.process_count()}
    with pipeline.evaluation(split, experiment.config.data, size, **hosts) as batches:
        for images, valid in batches:
            put = jax.make_array_from_process_local_data(meshes.row_sharded(experiment.mesh), images)
            rows.append(np.asarray(embedder(state.params, state.model_state, put), np.float32)[:valid])
            done += valid
            on_progress(done)
    return np.concatenate(rows)
