"""Metrics of a model on one split of its experiment."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dml_jax.config import Config
from dml_jax.data.split import Split
from dml_jax.evaluation import protocol
from dml_jax.methods.contract import Embed
from dml_jax.train import inference
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState


def embed_with_gallery(
    experiment: Experiment,
    embedder: Embed,
    state: TrainState,
    name: str,
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[str, np.ndarray]:
    """Embeddings float32 [N, D] of the split `name` and, under "gallery", of its gallery if it has one.

    Args:
      experiment: the splits.
      embedder: from `inference.compile_embedder`.
      state: the model.
      name: "test", "validation" or "train".
      on_progress: called after each batch; may raise to stop.
    """
    split = experiment.splits[name]
    splits = {name: split} if split.gallery is None else {name: split, "gallery": split.gallery}
    return {key: inference.embed_split(experiment, embedder, state, part, on_progress) for key, part in splits.items()}


def metrics(
    config: Config,
    split: Split,
    embeddings: np.ndarray,
    gallery: np.ndarray | None = None,
    *,
    cluster: bool,
    per_query: bool = False,
) -> dict[str, Any]:
    """The metrics of `protocol.evaluate` with the options of a configuration.

    Args:
      config: its evaluation options.
      split: gives the labels.
      embeddings: float [N, D] of the split.
      gallery: float [G, D] of the split's gallery, if it has one.
      cluster: also computes the clustering metrics.
      per_query: see `metrics.retrieval`.
    """
    options: dict[str, Any] = {}
    if split.gallery is not None:
        options = {"gallery": gallery, "gallery_labels": split.gallery.labels}
    evaluation = config.evaluation
    return protocol.evaluate(
        embeddings,
        split.labels,
        ks=evaluation.ks,
        protocol=evaluation.protocol,
        cluster=cluster,
        average=evaluation.nmi_average,
        full_ranking=evaluation.full_ranking,
        per_query=per_query,
        **options,
    )
