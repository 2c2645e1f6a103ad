"""Test-time refinement of a test split by the method of a run, in batches of one kind or another."""

from dataclasses import replace

import numpy as np

from dml_jax.config import Data, Refine
from dml_jax.data import samplers
from dml_jax.evaluation import refinement_batches
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState


def from_clusters(labels: np.ndarray, data: Data, seed: int) -> Groups:
    """Batches drawn from clusters as the authors draw theirs from classes in training.

    Args:
      labels: int [N], the cluster of every image, in 0..C-1.
      data: `batch_size` and `images_per_class`, here images of a cluster in a chunk, are read.
      seed: of the draw.
    """
    size = data.images_per_class
    chunks = max(2, min(data.batch_size, len(labels)) // size)  # of which two clusters fill four at least
    sampler = samplers.build(replace(data, sampler="mpn", batch_size=chunks * size), labels, seed)
    return Groups(np.stack([sampler.batch(step) for step in range(sampler.first_step(1))]), chunks * size)


def refined(
    experiment: Experiment, state: TrainState, kind: Refine, found: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The embeddings of the test split after message passing in batches of one kind.

    The method's own batches ("reciprocal") refine the queries alone, as its authors do; the others, which know nothing
    of queries, all images.

    Args:
      experiment: the run.
      state: the trained one.
      kind: of batches.
      found: embeddings float32 [N, D] of "test" and, where there is one, of the "gallery".

    Returns:
      (embeddings of the same images, [N, D'], what the clustering found).

    Raises:
      DataError: a clustering finds fewer than two clusters.
      ConfigError: the method cannot refine queries that search this gallery.
    """
    assert experiment.method.refine is not None
    config, data = experiment.config, experiment.config.data
    if kind == "reciprocal":
        queries = experiment.method.refine(state.params, state.model_state, found["test"], found.get("gallery"))
        return found | {"test": np.asarray(queries)}, {}
    points = np.concatenate(list(found.values()))
    facts: dict[str, int] = {}
    if kind == "neighbors":
        chunk = min(data.images_per_class, len(points))
        groups = refinement_batches.neighbor_chunks(
            points, chunk=chunk, chunks=max(1, data.batch_size // data.images_per_class), seed=config.seed
        )
    else:
        judged = config.evaluation
        clusters = refinement_batches.cluster(
            points, kind, count=judged.refine_clusters, eps=judged.refine_eps,
            min_samples=judged.refine_min_samples, seed=config.seed,
        )  # fmt: skip
        groups = from_clusters(clusters.labels, data, config.seed)
        facts = {"clusters": clusters.found, "noise": clusters.noise}
    vectors = np.asarray(experiment.method.refine(state.params, state.model_state, points, groups=groups))
    return dict(zip(found, np.split(vectors, np.cumsum([len(x) for x in found.values()])[:-1]), strict=True)), facts
