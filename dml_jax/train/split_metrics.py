"""Embeddings and metrics of a model on one split.

A model may have several test-time readings, such as other weights of its embeddings: they are computed together, and
one is reported.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.config import Evaluation
from dml_jax.config.sections import BEST
from dml_jax.data.split import Split, some_classes, with_gallery
from dml_jax.evaluation import protocol
from dml_jax.methods.contract import Distance, PyTree
from dml_jax.train.embedding import Embedder, Variables
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState

Embeddings = dict[str, np.ndarray]  # float32 [N, D] of a split under its name and, if there is one, of its "gallery"


class ReadingsEmbedder(NamedTuple):
    """The compiled embedding of a run with all its readings."""

    embedder: Embedder  # gives the embeddings of all readings side by side
    # The columns of each reading's embedding; a run without readings has one, named "".
    columns: dict[str, slice]

    def embed(
        self, model: Variables, name: str, split: Split, on_progress: Callable[[int], None] = lambda done: None
    ) -> dict[str, Embeddings]:
        """The embeddings of a split and of its gallery, by reading."""
        parts = with_gallery({name: split})
        found = {key: self.embedder.embed_split(model, part, on_progress) for key, part in parts.items()}
        if len(self.columns) == 1:
            return dict.fromkeys(self.columns, found)
        return {
            reading: {key: np.ascontiguousarray(rows[:, columns]) for key, rows in found.items()}
            for reading, columns in self.columns.items()
        }


def compiled(experiment: Experiment, shapes: TrainState) -> ReadingsEmbedder:
    """The embedder of a run; parts that its readings share, such as the backbone, are computed once."""
    functions = dict(experiment.readings) or {"": experiment.method.embed}

    def side_by_side(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        return jnp.concatenate([embed(params, model_state, images) for embed in functions.values()], axis=1)

    image = jax.ShapeDtypeStruct((1, *experiment.shape, 3), jnp.uint8)
    widths = [jax.eval_shape(embed, shapes.params, shapes.model_state, image).shape[1] for embed in functions.values()]
    ends = np.cumsum(widths).tolist()
    columns = {name: slice(end - width, end) for name, width, end in zip(functions, widths, ends, strict=True)}
    function = side_by_side if len(functions) > 1 else next(iter(functions.values()))
    return ReadingsEmbedder(experiment.embedder(function), columns)


def reported(options: Evaluation, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the reading whose metrics count, given those of all: the first of the best, or the chosen one."""
    if options.reading != BEST:
        return options.reading
    return max(metrics, key=lambda name: metrics[name]["recall@1"])


SEEN = 2000  # training images whose retrieval is measured during training


def metrics(
    options: Evaluation,
    distance: Distance,
    split: Split,
    embeddings: Embeddings,
    *,
    cluster: bool,
    per_query: bool = False,
    shared: bool = False,
    prefixes: Sequence[int] = (),
) -> dict[str, Any]:
    """`protocol.evaluate` for the embeddings of a split."""
    (queries, *others) = (rows for name, rows in sorted(embeddings.items(), key=lambda entry: entry[0] == "gallery"))
    searched: dict[str, Any] = {}
    candidates = len(queries) - 1
    if split.gallery is not None:
        searched = {"gallery": others[0], "gallery_labels": split.gallery.labels}
        candidates = len(others[0])
    return protocol.evaluate(
        queries,
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
    found = metrics(options, distance, sample, {"train": rows}, cluster=False, shared=True)
    return {f"train/{name}": found[name] for name in ("recall@1", "map@r")}
