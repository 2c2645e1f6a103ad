"""The model that a run keeps with `train.select="mixture"`: published weights, the network before
its training, the trained one or the mean of both, whichever is best on the validation classes.

Weights are interpolated (Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022), so
that the result is one network. Few validation classes tell little, so another candidate has to be
clearly better than published weights; otherwise these are kept.
"""

import math
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.console import Console
from dml_jax.data.split import some_classes
from dml_jax.errors import counted
from dml_jax.methods.contract import PyTree
from dml_jax.train import model_metrics, parameter_groups
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import process_group
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState, inference_state

PUBLISHED = "published weights"
SHARES = {"before training": 0.0, "halfway": 0.5, "trained": 1.0}  # of the trained weights
# Standard errors that a gain must exceed. More would often reject what is better: with one, 4 or 5
# validation classes rejected the layer in 4 of 16 draws, with this in 3.
CAUTION = 0.5
MOST = 2000  # validation images; of more, this many are drawn at random


class Gain(NamedTuple):
    """The difference between the metrics of two models, averaged over classes, and its standard
    error."""

    mean: float
    error: float


def gain(rows: np.ndarray, reference: np.ndarray, labels: np.ndarray) -> Gain:
    """The gain in a metric of each query, float [Q], over a reference; `labels` are int [Q].

    A query whose value is NaN does not count. Queries of a class are alike, so the error is that of
    classes drawn at random; fewer than two classes tell nothing, and their gain is 0.
    """
    difference = rows - reference
    counted = ~np.isnan(difference)
    means = [difference[counted & (labels == c)].mean() for c in np.unique(labels[counted])]
    if len(means) < 2:  # across sessions, most classes may not count
        return Gain(0.0, 0.0)
    return Gain(float(np.mean(means)), float(np.std(means, ddof=1) / math.sqrt(len(means))))


def best(gains: dict[str, Gain]) -> str:
    """The candidate with the largest gain among those that exceed CAUTION standard errors; if there
    is none, `PUBLISHED`."""
    better = {
        name: found.mean for name, found in gains.items() if found.mean > CAUTION * found.error
    }
    return max(better, key=lambda name: better[name]) if better else PUBLISHED


def mixed(first: PyTree, last: PyTree, share: float) -> PyTree:
    """(1 - share) first + share last; counters are taken from `last`."""

    def mix(before: jax.Array, after: jax.Array) -> jax.Array:
        floating = jnp.issubdtype(after.dtype, jnp.floating)
        return (1 - share) * before + share * after if floating else after

    return jax.tree.map(mix, first, last)


def keep(
    experiment: Experiment,
    last: TrainState,
    directory: Path,
    run: dict[str, Any],
    console: Console,
    stop: Stop,
) -> tuple[TrainState, dict[str, Any]]:
    """Stores the best candidate as the checkpoint "best" of a trained run.

    Returns its `inference_state`, and what `results.json` says about the choice.
    """
    folder = directory / "checkpoints"
    with closing(Checkpoints(folder, experiment.template, console.warn, run=run)) as stored:
        restored = stored.restore("first")
        assert restored is not None  # saved before the first step
        state, about = choose(experiment, restored[0], last, console, stop)
        _, factors = parameter_groups.split(last.params)
        params = parameter_groups.join(state.params, jax.tree.map(jnp.zeros_like, factors))
        stored.save("best", state._replace(params=params, opt_state=last.opt_state), about)
    return state, about


def choose(
    experiment: Experiment, first: TrainState, last: TrainState, console: Console, stop: Stop
) -> tuple[TrainState, dict[str, Any]]:
    """The `inference_state` of the best candidate, and the metrics of all on validation classes."""
    split, publish = experiment.splits["validation"], experiment.method.hooks.published
    split = some_classes(split, len(split.classes), MOST)
    assert publish is not None
    console.print(
        f"choosing on {counted(len(split.labels), 'image')} of "
        f"{counted(len(split.classes), 'validation class')}"
    )
    start, end = (inference_state(state) for state in (first, last))
    before, after = ((state.params, state.model_state) for state in (start, end))
    candidates = {PUBLISHED: publish(*before)}
    candidates |= {name: mixed(before, after, share) for name, share in SHARES.items()}
    states = {
        name: end._replace(params=params, model_state=model_state)
        for name, (params, model_state) in candidates.items()
    }
    config, distance = experiment.config, experiment.method.distance
    embedder, splits = experiment.embedder(experiment.method.embed), {"validation": split}
    found: dict[str, dict[str, Any]] = {}
    gains: dict[str, Gain] = {}
    published = np.zeros(0)
    for name, state in states.items():
        rows = embedder.embed_split(state, split, lambda done: stop.raise_if_stopped())
        metrics = model_metrics.metrics(
            config, distance, splits, {"validation": rows}, cluster=False, per_query=True
        )
        both = ((metrics["rank"] == 1) + metrics["map@r_per_query"]) / 2  # of each query
        published = both if name == PUBLISHED else published
        gains[name] = gain(both, published, split.labels)
        found[name] = {"recall@1": metrics["recall@1"], "map@r": metrics["map@r"]}
        found[name] |= {"gain": gains[name].mean, "gain_stderr": gains[name].error}
        console.print(f"  {name}: Recall@1 {metrics['recall@1']:.1%}, MAP@R {metrics['map@r']:.1%}")
    kept = process_group.decided_by_first(lambda: best(gains))  # others may round differently
    console.print(f"kept: {kept}")
    return states[kept], {"kept": kept, "classes": len(split.classes), "validation": found}
