"""Embeddings of whole splits with a trained model."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from dml_jax.config import Config, Data
from dml_jax.data import pipeline
from dml_jax.data.split import Split
from dml_jax.methods.contract import Embed
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.state import TrainState


class Embedder(NamedTuple):
    """A compiled function of images, and how a split is read for it."""

    compute: Embed  # (params, model_state, images uint8 [B, H, W, 3], split over the devices) -> [B, D] on every device
    mesh: Mesh
    data: Data  # the transform of the images
    batch_size: int  # images at once, on all devices together


def compile_embedder(function: Embed, mesh: Mesh, config: Config) -> Embedder:
    """The embedder of a function such as `Method.embed`, with the transform and batch size of a configuration."""
    compute = jax.jit(function, out_shardings=meshes.replicated(mesh))
    devices = jax.device_count()
    return Embedder(compute, mesh, config.data, -(-config.evaluation.batch_size // devices) * devices)


def embed_split(
    embedder: Embedder, state: TrainState, split: Split, on_progress: Callable[[int], None] = lambda done: None
) -> np.ndarray:
    """Embeddings float32 [N, D] of the images of a split; each process reads its share of every batch.

    `on_progress` is called after each batch with the number of images done; it may raise to stop.
    """
    rows = np.empty(0, np.float32)
    done = 0
    hosts = {"host": jax.process_index(), "hosts": jax.process_count()}
    with pipeline.evaluation(split, embedder.data, embedder.batch_size, **hosts) as batches:
        for images, valid in batches:
            put = jax.make_array_from_process_local_data(meshes.row_sharded(embedder.mesh), images)
            found = np.asarray(embedder.compute(state.params, state.model_state, put), np.float32)
            if not done:  # at once, because parts would have to be copied while the whole is in memory
                rows = np.empty((len(split.labels), *found.shape[1:]), np.float32)
            rows[done : done + valid] = found[:valid]
            done += valid
            on_progress(done)
    return rows


def embed_with_gallery(
    embedder: Embedder,
    state: TrainState,
    name: str,
    split: Split,
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[str, np.ndarray]:
    """Embeddings float32 [N, D] of a split under its name and, under "gallery", of its gallery if it has one."""
    splits = {name: split} if split.gallery is None else {name: split, "gallery": split.gallery}
    return {key: embed_split(embedder, state, part, on_progress) for key, part in splits.items()}
