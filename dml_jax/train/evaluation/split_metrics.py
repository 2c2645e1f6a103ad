"""Metrics of a model on one split."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dml_jax.config import Evaluation
from dml_jax.data.split import Split, some_classes
from dml_jax.evaluation import protocol
from dml_jax.methods.contract import Distance
from dml_jax.train.embedding import Embedder, Variables

SEEN = 2000  # training images whose retrieval is measured during training


def metrics(
    options: Evaluation,
    distance: Distance,
    split: Split,
    embeddings: np.ndarray,
    gallery: np.ndarray | None = None,
    *,
    cluster: bool,
    per_query: bool = False,
    shared: bool = False,
    prefixes: Sequence[int] = (),
) -> dict[str, Any]:
    """`protocol.evaluate` for embeddings float [N, D] of a split, and [G, D] of its gallery if it has one."""
    searched: dict[str, Any] = {}
    if split.gallery is not None:
        searched = {"gallery": gallery, "gallery_labels": split.gallery.labels}
    candidates = len(embeddings) - 1 if gallery is None else len(gallery)
    return protocol.evaluate(
        embeddings,
        split.labels,
        ks=[k for k in options.ks if k <= candidates],
        protocol=options.protocol,
        cluster=cluster,
        average=options.nmi_average,
        metric=distance,
        **options.kmeans,
        lone_queries=options.lone_queries,
        prefixes=prefixes,
        full_ranking=options.full_ranking,
        per_query=per_query,
        shared=shared,
        **searched,
    )


def of_training_classes(
    options: Evaluation,
    distance: Distance,
    embedder: Embedder,
    model: Variables,
    train: Split,
    like: Split,
    on_progress: Callable[[int], None],
    columns: slice = slice(None),
) -> dict[str, float]:
    """Recall@1 and MAP@R among a sample of the training classes, to be compared with those of unseen classes.

    The sample has at most as many classes and images as the split `like`, and about SEEN images. `columns` are those of
    the embeddings that are compared.
    """
    most = min(SEEN, len(like.labels))
    whole = max(2, most * len(train.classes) // len(train.labels))  # classes that fit
    sample = some_classes(train, min(whole, len(np.unique(like.labels))), len(like.labels))
    rows = np.ascontiguousarray(embedder.embed_split(model, sample, on_progress)[:, columns])
    found = metrics(options, distance, sample, rows, cluster=False, shared=True)
    return {f"train/{name}": found[name] for name in ("recall@1", "map@r")}
