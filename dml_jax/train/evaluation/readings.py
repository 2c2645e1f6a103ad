"""Several test-time readings of one model, such as other weights of its embeddings: computed together, one reported."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.config import Config, Evaluation
from dml_jax.config.evaluation import BEST
from dml_jax.data.split import Split
from dml_jax.methods.contract import PyTree
from dml_jax.train.evaluation import embedding
from dml_jax.train.evaluation.embedding import Embedder
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir
from dml_jax.train.state import TrainState

Embeddings = dict[str, np.ndarray]  # float32 [N, D] of a split under its name and, if there is one, of its "gallery"


class Readings(NamedTuple):
    """The compiled embedding of a run."""

    embedder: Embedder  # gives the embeddings of all readings side by side
    # Where each reading's embedding stands in the rows; a run without readings has one, named "".
    columns: dict[str, slice]

    def of(
        self, state: TrainState, name: str, split: Split, on_progress: Callable[[int], None] = lambda done: None
    ) -> dict[str, Embeddings]:
        """The embeddings of a split and of its gallery, by reading."""
        found = embedding.embed_with_gallery(self.embedder, state, name, split, on_progress)
        if len(self.columns) == 1:
            return dict.fromkeys(self.columns, found)
        return {
            reading: {key: np.ascontiguousarray(rows[:, columns]) for key, rows in found.items()}
            for reading, columns in self.columns.items()
        }


def compiled(experiment: Experiment, state: TrainState) -> Readings:
    """The readings of a run; parts that they share, such as the backbone, are computed once. Of the state, only shapes
    matter."""
    functions = dict(experiment.readings) or {"": experiment.method.embed}

    def side_by_side(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        return jnp.concatenate([embed(params, model_state, images) for embed in functions.values()], axis=1)

    image = jax.ShapeDtypeStruct((1, *experiment.shape, 3), jnp.uint8)
    widths = [jax.eval_shape(embed, state.params, state.model_state, image).shape[1] for embed in functions.values()]
    ends = np.cumsum(widths).tolist()
    columns = {name: slice(end - width, end) for name, width, end in zip(functions, widths, ends, strict=True)}
    function = side_by_side if len(functions) > 1 else next(iter(functions.values()))
    return Readings(embedding.compile_embedder(function, experiment.mesh, experiment.config), columns)


def reported(options: Evaluation, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the reading whose metrics count, given those of all: the first of the best, or the chosen one."""
    if options.reading != BEST:
        return options.reading
    return max(metrics, key=lambda name: metrics[name]["recall@1"])


def name_in_results(config: Config, directory: Path) -> str:
    """The reading that the results of a run report; empty if there are none, or it has no readings."""
    name = workdir.read_results(directory).get("reading")
    return name if name in config.evaluation.readings else ""


def embedding_as(experiment: Experiment, reading: str) -> Experiment:
    """The run, whose method embeds as a reading says; as its configuration says if that has no such reading."""
    embed = experiment.readings.get(reading, experiment.method.embed)
    return experiment._replace(method=experiment.method._replace(embed=embed))
