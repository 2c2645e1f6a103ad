"""The network that a run keeps with `train.select="folds"`: the published weights, these with the
layer in closed form, the trained network, or the mean of the weights of the last two.

All training classes decide. They are dealt into two halves; a network is trained on each half, for
half the steps of the run, and measured on the classes of the other half. The candidate with the
largest gain over published weights, averaged over the classes, is kept, unless published weights
are better by more than MARGIN. The test classes have no part in it.

Averaged weights are one network (Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR
2022).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from dml_jax import buckets
from dml_jax.console import Console
from dml_jax.data.split import Split, hold_out, some_classes, with_gallery
from dml_jax.errors import ConfigError, counted
from dml_jax.train import experiment as experiments
from dml_jax.train import loop, model_metrics, warm_start
from dml_jax.train.checkpoint import Checkpoints, mean_weights
from dml_jax.train.controls import PUBLISHED as PUBLISHED_CONTROL
from dml_jax.train.distributed import device_mesh, process_group
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState

PUBLISHED, LAYER, HALFWAY, TRAINED = "published", "layer", "halfway", "trained"
# Standard errors by which published weights must be better to be kept. On drawn classes, demanding
# any gain instead, or one of half a standard error, had twice the regret and more
# (benchmarks/RESULTS.md).
MARGIN = 0.5
MOST = 2000  # images of a half that are embedded; of more, this many are drawn at random
DIRECTORY = "folds"  # in the work directory, until the run is finished
Measured = dict[str, dict[str, np.ndarray]]  # metrics float [C] of each class by candidate


class Gain(NamedTuple):
    """The difference between the metrics of two models, averaged over classes, and its standard
    error."""

    mean: float
    error: float


def gain(values: np.ndarray, reference: np.ndarray) -> Gain:
    """The gain over a reference, both float [C], of classes whose values are not NaN."""
    difference = values - reference
    difference = difference[~np.isnan(difference)]
    if len(difference) < 2:  # across sessions, most classes may not count
        return Gain(0.0, 0.0)
    return Gain(
        float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))
    )


def best(gains: Mapping[str, Gain], margin: float = MARGIN) -> str:
    """The candidate with the largest mean gain; published weights if they are better than all
    others by more than `margin` standard errors."""
    others = (name for name in gains if name != PUBLISHED)
    name = max(others, key=lambda name: gains[name].mean)
    return name if gains[name].mean > -margin * gains[name].error else PUBLISHED


def by_class(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean of each class, float [C], of the values of queries that are not NaN."""
    known = ~np.isnan(values)
    sums = np.bincount(labels[known], values[known], labels.max() + 1)
    counts = np.bincount(labels[known], minlength=labels.max() + 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)[np.unique(labels)]


def candidates(
    experiment: Experiment, first: TrainState, last: TrainState
) -> dict[str, TrainState]:
    """The state of each candidate, from the states before and after the training."""
    assert experiment.method.hooks.published is not None
    params, model_state = experiment.method.hooks.published(first.params, first.model_state)
    return {
        PUBLISHED: last._replace(params=params, model_state=model_state),
        LAYER: first._replace(step=last.step),
        HALFWAY: mean_weights(first, last),
        TRAINED: last,
    }


def halves(experiment: Experiment) -> Iterator[tuple[Experiment, Split]]:
    """Two experiments, each on half of the training classes and for half the steps, with the images
    of the other half."""
    if len(experiment.class_names) < 4:
        raise ConfigError(
            "train.select='folds': needs 4 training classes; add classes, or set train.select=last"
        )
    parts = hold_out(experiment.splits["train"], 0.5)
    for own, other in (parts, parts[::-1]):
        common = set(own.classes).intersection(other.classes)
        assert not common, f"measured on classes that are trained on: {common}"
        config = experiment.config
        train = replace(config.train, steps=max(1, experiment.steps // 2), epochs=0)
        train = replace(train, warmup_epochs=0, evaluate_every=0, keep_every=0)
        data = replace(config.data, batch_size=_batch_size(experiment, len(own.classes)))
        splits = {"train": own, "test": other}
        half = experiments.build(replace(config, data=data, train=train), splits, experiment.mesh)
        yield half._replace(teach=experiment.teach, teacher=experiment.teacher), other


def _batch_size(experiment: Experiment, classes: int) -> int:
    """The batch size of the run, or the largest that fewer classes fill."""
    data, each = experiment.config.data, experiment.config.data.images_per_class
    parts = math.lcm(each, experiment.mesh.size * experiment.config.train.chunks)
    size = min(data.batch_size, each * classes // parts * parts)
    if size < 2 * each:
        raise ConfigError(
            f"train.select='folds': half of the training classes, {classes}, do not fill a batch; "
            "add classes, or set train.select=last"
        )
    return size


def prepare(
    experiment: Experiment, directory: Path, run: dict[str, Any], console: Console, stop: Stop
) -> None:
    """Measures the layer, keeps it or the published weights until there is better, and trains the
    halves; nothing once the training on all classes has a checkpoint."""
    both = list(halves(experiment))
    with _opened(experiment, directory, run, console) as stored:
        if stored.steps():
            return
        if not stored.steps("best"):
            stored.save("best", _first_choice(experiment, both, console, stop), {})
    for number, (half, other) in enumerate(both, 1):
        console.print(
            f"fold {number} of 2: training on {counted(len(half.class_names), 'class')} to measure "
            f"on {len(other.classes)} others"
        )
        loop.train(half, _place(directory, number), half.provenance(), console, stop)


def _place(directory: Path, number: int) -> Path:
    place = directory / DIRECTORY / str(number)
    place.mkdir(parents=True, exist_ok=True)
    return place


def _opened(
    experiment: Experiment, directory: Path, run: Mapping[str, Any], console: Console
) -> closing[Checkpoints]:
    folder = directory / "checkpoints"
    return closing(Checkpoints(folder, experiment.template, console.warn, run=run))


def _first_choice(
    experiment: Experiment, both: list[tuple[Experiment, Split]], console: Console, stop: Stop
) -> TrainState:
    """The initial state with the layer in closed form or, if these are better, published weights.

    The layer of each half is measured on the other, from the published features of all images.
    """
    train, hooks = experiment.splits["train"], experiment.method.hooks
    assert hooks.refresh is not None
    assert hooks.refresh.head is not None
    assert hooks.published is not None
    console.print(f"computing features of {counted(len(train.labels), 'training image')}")
    state = warm_start.initial_state(experiment, console)
    embedder = experiment.embedder(hooks.refresh.features)
    features = embedder.embed_split(state, train, lambda done: stop.raise_if_stopped())
    row = {name: i for i, name in enumerate(train.ids)}
    local = jax.tree.map(np.asarray, (state.params, state.model_state))
    found: list[Measured] = []
    for half, other in both:
        assert half.method.hooks.refresh is not None
        own = features[[row[name] for name in half.splits["train"].ids]]
        held = some_classes(other, len(other.classes), MOST)
        rows = features[[row[name] for name in held.ids]]
        layer, _ = half.method.hooks.refresh.update(*local, own, experiment.key)
        published, _ = hooks.published(*local)
        heads = {PUBLISHED: published, LAYER: layer}
        embeddings = {
            name: np.asarray(hooks.refresh.head(params, jnp.asarray(rows)))
            for name, params in heads.items()
        }
        found.append(_metrics(half, held, embeddings))
    gains = _report(found, console)
    params, model_state = hooks.refresh.update(*local, features, experiment.key)
    if process_group.decided_by_first(lambda: best(gains)) == PUBLISHED:
        params, model_state = hooks.published(params, model_state)
    placed = device_mesh.place(experiment.mesh, (params, model_state))
    return state._replace(params=placed[0], model_state=placed[1])


def _metrics(half: Experiment, held: Split, embeddings: Mapping[str, np.ndarray]) -> Measured:
    """Recall@1 and MAP@R of each class by candidate."""
    config, distance = half.config, half.method.distance
    found: Measured = {}
    for name, rows in embeddings.items():
        metrics = model_metrics.metrics(
            config, distance, {"test": held}, {"test": rows}, cluster=False, per_query=True
        )
        precision = metrics["map@r_per_query"]
        hits = np.where(np.isnan(precision), np.nan, metrics["rank"] == 1)
        found[name] = {
            "recall@1": by_class(hits, held.labels),
            "map@r": by_class(precision, held.labels),
        }
    return found


def _report(found: list[Measured], console: Console) -> dict[str, Gain]:
    """Prints the candidates measured on all classes; their gains in the mean of both metrics."""
    gains = {}
    both = {name: sum(_joined(found, name).values()) / 2 for name in found[0]}
    console.print("on training classes that each candidate has not seen:")
    for name, values in both.items():
        gains[name] = gain(np.asarray(values), np.asarray(both[PUBLISHED]))
        recall, precision = (np.nanmean(v) for v in _joined(found, name).values())
        console.print(f"  {name}: Recall@1 {recall:.1%}, MAP@R {precision:.1%}")
    return gains


def _joined(found: list[Measured], name: str) -> dict[str, np.ndarray]:
    """The metrics of a candidate on the classes of all folds."""
    keys = found[0][name]
    return {key: np.concatenate([part[name][key] for part in found]) for key in keys}


def keep(
    experiment: Experiment,
    last: TrainState,
    directory: Path,
    run: dict[str, Any],
    console: Console,
    stop: Stop,
) -> tuple[dict[str, TrainState], dict[str, Any]]:
    """Stores the best candidate as the checkpoint "best" of a trained run.

    Returns all candidates, and what `results.json` says about the choice.
    """
    found: list[Measured] = []
    for number, (half, other) in enumerate(halves(experiment), 1):
        place, facts = _place(directory, number), half.provenance()
        with _opened(half, place, facts, console) as stored:
            ends = [stored.restore(kind) for kind in ("first", "latest")]
        states = candidates(half, *(end[0] for end in ends if end))
        held = some_classes(other, len(other.classes), MOST)
        embedder = half.embedder(half.method.embed)
        rows = {
            name: embedder.embed_split(state, held, lambda done: stop.raise_if_stopped())
            for name, state in states.items()
        }
        found.append(_metrics(half, held, rows))
    gains = _report(found, console)
    kept = process_group.decided_by_first(lambda: best(gains))  # others may round differently
    console.print(f"kept: {kept}")
    with _opened(experiment, directory, run, console) as stored:
        first = stored.restore("first")
        assert first is not None  # saved before the first step
        states = candidates(experiment, first[0], last)
        stored.save("best", states[kept]._replace(opt_state=last.opt_state), {})
    joined = {name: _joined(found, name) for name in gains}
    measured = {
        name: {key: float(np.nanmean(values)) for key, values in joined[name].items()}
        | {"gain": gains[name].mean, "gain_stderr": gains[name].error}
        for name in gains
    }
    classes = len(experiment.class_names)
    return states, {"kept": kept, "classes": classes, "training": measured}


def on_unseen(
    experiment: Experiment, states: Mapping[str, TrainState], kept: str, results: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Recall@1 and MAP@R of all candidates on the test classes, to look at after the choice."""
    splits = with_gallery(experiment.splits)
    embedder = experiment.embedder(experiment.method.embed)
    known = {PUBLISHED: results.get("controls", {}).get(PUBLISHED_CONTROL), kept: results}
    found = {}
    for name, state in states.items():
        if not (metrics := known.get(name)):
            rows = {key: embedder.embed_split(state, part) for key, part in splits.items()}
            metrics = model_metrics.metrics(
                experiment.config, experiment.method.distance, splits, rows, cluster=False
            )
        found[name] = {key: metrics[key] for key in ("recall@1", "map@r")}
    return found


def clean_up(directory: Path) -> None:
    """Removes the folds of a finished run."""
    for folds in {buckets.origin(directory / DIRECTORY), directory / DIRECTORY}:
        if folds.exists():
            epath.Path(folds).rmtree()
