"""Test-time refinement of a test split by the method of a run, in batches of a chosen kind."""

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from dml_jax.config import Config, Data, Refine
from dml_jax.data import samplers
from dml_jax.evaluation import refinement_batches
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.train.state import TrainState


def batches_from_clusters(labels: np.ndarray, data: Data, seed: int) -> Groups:
    """Batches drawn from clusters in the way the authors of MPN draw training batches from classes.

    Of `data`, `batch_size` and `images_per_class` are read; labels int [N] in 0..C-1 are the clusters of the images.
    """
    size = data.images_per_class
    chunks = max(2, min(data.batch_size, len(labels)) // size)  # two clusters always fill two chunks or more
    sampler = samplers.build(replace(data, sampler="mpn", batch_size=chunks * size), labels, seed)
    return Groups(np.stack([sampler.batch(step) for step in range(sampler.first_step(1))]), chunks * size)


def refined(
    config: Config, refine: Callable[..., jax.Array], state: TrainState, kind: Refine, embeddings: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The embeddings [N, D'] after message passing in batches of one kind, and numbers of clusters and noise images.

    `embeddings` are float32 [N, D] of "test" and, if there is one, of "gallery". The method's own batches
    ("reciprocal") refine the queries only, as its authors do; all other kinds refine queries and gallery alike.
    """
    data = config.data
    if kind == "reciprocal":
        gallery = embeddings.get("gallery")
        queries = refine(state.params, state.model_state, embeddings["test"], gallery)
        return embeddings | {"test": np.asarray(queries)}, {}
    points = np.concatenate(list(embeddings.values()))
    facts: dict[str, int] = {}
    if kind == "neighbors":
        chunk = min(data.images_per_class, len(points))
        groups = refinement_batches.neighbor_chunks(
            points, chunk=chunk, chunks=max(1, data.batch_size // data.images_per_class), seed=config.seed
        )
    else:
        options = config.evaluation
        clusters = refinement_batches.cluster(
            points,
            kind,
            count=options.refine_clusters,
            eps=options.refine_eps,
            min_samples=options.refine_min_samples,
            seed=config.seed,
        )
        groups = batches_from_clusters(clusters.labels, data, config.seed)
        facts = {"clusters": clusters.found, "noise": clusters.noise}
    rows = np.asarray(refine(state.params, state.model_state, points, None, groups=groups))
    ends = np.cumsum([len(x) for x in embeddings.values()])[:-1]
    return dict(zip(embeddings, np.split(rows, ends), strict=True)), facts
