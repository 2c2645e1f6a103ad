"""Metrics of a model on one split of its experiment."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dml_jax.config import Config
from dml_jax.data.holdout import some_classes
from dml_jax.data.split import Split
from dml_jax.evaluation import protocol
from dml_jax.methods.contract import Embed
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState
from dml_jax.train.testing import embedding

SEEN = 2000  # training images whose retrieval is measured during training


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
    return {key: embedding.embed_split(experiment, embedder, state, part, on_progress) for key, part in splits.items()}


def metrics(
    config: Config,
    split: Split,
    embeddings: np.ndarray,
    gallery: np.ndarray | None = None,
    *,
    cluster: bool,
    per_query: bool = False,
    shared: bool = False,
) -> dict[str, Any]:
    """The metrics of `protocol.evaluate` with the options of a configuration.

    Args:
      config: its evaluation options.
      split: gives the labels.
      embeddings: float [N, D] of the split.
      gallery: float [G, D] of the split's gallery, if it has one.
      cluster: also computes the clustering metrics.
      per_query: see `metrics.retrieval`.
      shared: whether all processes of the run call this, and divide the work.
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
        **evaluation.kmeans,
        full_ranking=evaluation.full_ranking,
        per_query=per_query,
        shared=shared,
        **options,
    )


def of_training_classes(
    experiment: Experiment, embedder: Embed, state: TrainState, like: Split, on_progress: Callable[[int], None]
) -> dict[str, float]:
    """Recall@1 and MAP@R among a sample of the training classes, to be seen beside those of unseen classes.

    Args:
      experiment, embedder, state, on_progress: see `embed_with_gallery`.
      like: the sample has at most as many classes and images as this split, and about SEEN images.
    """
    train = experiment.splits["train"]
    most = min(SEEN, len(like.labels))
    whole = max(2, most * len(train.classes) // len(train.labels))  # classes that fit
    sample = some_classes(train, min(whole, len(np.unique(like.labels))), len(like.labels))
    rows = embedding.embed_split(experiment, embedder, state, sample, on_progress)
    found = metrics(experiment.config, sample, rows, cluster=False, shared=True)
    return {f"train/{name}": found[name] for name in ("recall@1", "map@r")}
