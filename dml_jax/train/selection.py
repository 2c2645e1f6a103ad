"""Selects the model of a run with `train.select="folds"`.

Candidates are the published weights, these with a closed-form layer, the trained network, and the
mean of the weights of the latter two.

All training classes decide. They are split into two halves; a network is trained on each half, for
half the steps of the run, and measured on the classes of the other half. The candidate with the
largest gain over published weights, averaged over classes, is selected, unless published weights
are better by more than MARGIN. Test classes are not used.

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
# Published weights are selected if they are better by this number of standard errors. On random
# classes, requiring any gain of the others, or one of half a standard error, at least doubled the
# regret (benchmarks/RESULTS.md).
MARGIN = 0.5
MOST = 2000  # images of a half to embed; a random sample if there are more
DIRECTORY = "folds"  # in the work directory, until the run is finished
Measured = dict[str, dict[str, np.ndarray]]  # metrics float [C] of each class by candidate


class Gain(NamedTuple):
    """The mean difference between two models' metrics over classes, and its standard error."""

    mean: float
    error: float


def gain(values: np.ndarray, reference: np.ndarray) -> Gain:
    """The gain over a reference, both float [C], ignoring classes with NaN."""
    difference = values - reference
    difference = difference[~np.isnan(difference)]
    if len(difference) < 2:  # across sessions, most classes may have none
        return Gain(0.0, 0.0)
    return Gain(
        float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))
    )


def best(gains: Mapping[str, Gain], margin: float = MARGIN) -> str:
    """The candidate with the largest mean gain, or published weights if they are better than all
    others by more than `margin` standard errors."""
    alternatives = (name for name in gains if name != PUBLISHED)
    name = max(alternatives, key=lambda name: gains[name].mean)
    return name if gains[name].mean > -margin * gains[name].error else PUBLISHED


def by_class(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean value of the queries of each class, float [C], ignoring NaN."""
    defined = ~np.isnan(values)
    sums = np.bincount(labels[defined], values[defined], labels.max() + 1)
    counts = np.bincount(labels[defined], minlength=labels.max() + 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)[np.unique(labels)]


def candidates(
    experiment: Experiment, first: TrainState, last: TrainState
) -> dict[str, TrainState]:
    """The state of each candidate, from the states before and after training."""
    assert experiment.method.hooks.published is not None
    params, model_state = experiment.method.hooks.published(first.params, first.model_state)
    return {
        PUBLISHED: last._replace(params=params, model_state=model_state),
        LAYER: first._replace(step=last.step),
        HALFWAY: mean_weights(first, last),
        TRAINED: last,
    }


def halves(experiment: Experiment) -> Iterator[tuple[Experiment, Split]]:
    """Two experiments, each on half of the training classes for half the steps, with the held-out
    half."""
    if len(experiment.class_names) < 4:
        raise ConfigError(
            "train.select='folds': needs at least 4 training classes; add classes, or set "
            "train.select=last"
        )
    folds = hold_out(experiment.splits["train"], 0.5)
    for training, held_out in (folds, folds[::-1]):
        overlap = set(training.classes).intersection(held_out.classes)
        assert not overlap, f"measured on classes that are trained on: {overlap}"
        config = experiment.config
        train = replace(config.train, steps=max(1, experiment.steps // 2), epochs=0)
        train = replace(train, warmup_epochs=0, evaluate_every=0, keep_every=0)
        data = replace(config.data, batch_size=_batch_size(experiment, len(training.classes)))
        splits = {"train": training, "test": held_out}
        half = experiments.build(replace(config, data=data, train=train), splits, experiment.mesh)
        yield half._replace(teach=experiment.teach, teacher=experiment.teacher), held_out


def _batch_size(experiment: Experiment, classes: int) -> int:
    """The batch size of the run, or the largest that this number of classes can fill."""
    data, each = experiment.config.data, experiment.config.data.images_per_class
    parts = math.lcm(each, experiment.mesh.size * experiment.config.train.chunks)
    size = min(data.batch_size, each * classes // parts * parts)
    if size < 2 * each:
        raise ConfigError(
            f"train.select='folds': half of the training classes ({classes}) cannot fill a batch; "
            "add classes, or set train.select=last"
        )
    return size


def prepare(
    experiment: Experiment, directory: Path, run: dict[str, Any], console: Console, stop: Stop
) -> None:
    """Saves the closed-form layer or published weights as the best model so far, and trains on both
    halves; does nothing once training on all classes has a checkpoint."""
    folds = list(halves(experiment))
    with _opened(experiment, directory, run, console) as checkpoints:
        if checkpoints.steps():
            return
        if not checkpoints.steps("best"):
            checkpoints.save("best", _first_choice(experiment, folds, console, stop), {})
    for number, (half, held_out) in enumerate(folds, 1):
        console.print(
            f"fold {number} of 2: training on {counted(len(half.class_names), 'class')}, "
            f"measuring on {len(held_out.classes)} others"
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
    experiment: Experiment, folds: list[tuple[Experiment, Split]], console: Console, stop: Stop
) -> TrainState:
    """The initial state with the closed-form layer or, if they are better, published weights.

    The layer of each half is measured on the other half, with the published features.
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
    measured: list[Measured] = []
    for half, held_out in folds:
        assert half.method.hooks.refresh is not None
        training_features = features[[row[name] for name in half.splits["train"].ids]]
        sample = some_classes(held_out, len(held_out.classes), MOST)
        sample_features = features[[row[name] for name in sample.ids]]
        layer, _ = half.method.hooks.refresh.update(*local, training_features, experiment.key)
        published, _ = hooks.published(*local)
        heads = {PUBLISHED: published, LAYER: layer}
        embeddings = {
            name: np.asarray(hooks.refresh.head(params, jnp.asarray(sample_features)))
            for name, params in heads.items()
        }
        measured.append(_metrics(half, sample, embeddings))
    gains = _report(measured, console)
    params, model_state = hooks.refresh.update(*local, features, experiment.key)
    if process_group.decided_by_first(lambda: best(gains)) == PUBLISHED:
        params, model_state = hooks.published(params, model_state)
    placed = device_mesh.place(experiment.mesh, (params, model_state))
    return state._replace(params=placed[0], model_state=placed[1])


def _metrics(half: Experiment, sample: Split, embeddings: Mapping[str, np.ndarray]) -> Measured:
    """Recall@1 and MAP@R per class, by candidate."""
    config, distance = half.config, half.method.distance
    measured: Measured = {}
    for name, rows in embeddings.items():
        metrics = model_metrics.metrics(
            config, distance, {"test": sample}, {"test": rows}, cluster=False, per_query=True
        )
        precision = metrics["map@r_per_query"]
        hits = np.where(np.isnan(precision), np.nan, metrics["rank"] == 1)
        measured[name] = {
            "recall@1": by_class(hits, sample.labels),
            "map@r": by_class(precision, sample.labels),
        }
    return measured


def _report(measured: list[Measured], console: Console) -> dict[str, Gain]:
    """Prints the metrics of all candidates; returns their gains in the mean of both metrics."""
    gains = {}
    means = {name: sum(_joined(measured, name).values()) / 2 for name in measured[0]}
    console.print("on training classes that were held out:")
    for name, values in means.items():
        gains[name] = gain(np.asarray(values), np.asarray(means[PUBLISHED]))
        recall, precision = (np.nanmean(v) for v in _joined(measured, name).values())
        console.print(f"  {name}: Recall@1 {recall:.1%}, MAP@R {precision:.1%}")
    return gains


def _joined(measured: list[Measured], name: str) -> dict[str, np.ndarray]:
    """The metrics of a candidate on the classes of all folds."""
    keys = measured[0][name]
    return {key: np.concatenate([part[name][key] for part in measured]) for key in keys}


def keep(
    experiment: Experiment,
    last: TrainState,
    directory: Path,
    run: dict[str, Any],
    console: Console,
    stop: Stop,
) -> tuple[dict[str, TrainState], dict[str, Any]]:
    """Saves the selected candidate of a trained run as the checkpoint "best".

    Returns all candidates, and the entry "choice" of `results.json`.
    """
    fold_metrics: list[Measured] = []
    for number, (half, held_out) in enumerate(halves(experiment), 1):
        folder, facts = _place(directory, number), half.provenance()
        with _opened(half, folder, facts, console) as stored:
            restored = [stored.restore(kind) for kind in ("first", "latest")]
        states = candidates(half, *(end[0] for end in restored if end))
        sample = some_classes(held_out, len(held_out.classes), MOST)
        embedder = half.embedder(half.method.embed)
        rows = {
            name: embedder.embed_split(state, sample, lambda done: stop.raise_if_stopped())
            for name, state in states.items()
        }
        fold_metrics.append(_metrics(half, sample, rows))
    gains = _report(fold_metrics, console)
    # Other processes may round differently.
    selected = process_group.decided_by_first(lambda: best(gains))
    console.print(f"selected: {selected}")
    with _opened(experiment, directory, run, console) as stored:
        first = stored.restore("first")
        assert first is not None  # saved before the first step
        states = candidates(experiment, first[0], last)
        stored.save("best", states[selected]._replace(opt_state=last.opt_state), {})
    by_candidate = {name: _joined(fold_metrics, name) for name in gains}
    summary = {
        name: {key: float(np.nanmean(values)) for key, values in by_candidate[name].items()}
        | {"gain": gains[name].mean, "gain_stderr": gains[name].error}
        for name in gains
    }
    classes = len(experiment.class_names)
    return states, {"kept": selected, "classes": classes, "training": summary}


def on_unseen(
    experiment: Experiment, states: Mapping[str, TrainState], kept: str, results: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Recall@1 and MAP@R of all candidates on the test classes, which did not affect the choice."""
    splits = with_gallery(experiment.splits)
    embedder = experiment.embedder(experiment.method.embed)
    available = {PUBLISHED: results.get("controls", {}).get(PUBLISHED_CONTROL), kept: results}
    metrics_by_candidate = {}
    for name, state in states.items():
        if not (metrics := available.get(name)):
            rows = {key: embedder.embed_split(state, part) for key, part in splits.items()}
            metrics = model_metrics.metrics(
                experiment.config, experiment.method.distance, splits, rows, cluster=False
            )
        metrics_by_candidate[name] = {key: metrics[key] for key in ("recall@1", "map@r")}
    return metrics_by_candidate


def clean_up(directory: Path) -> None:
    """Deletes the folds of a finished run."""
    for folds in {buckets.origin(directory / DIRECTORY), directory / DIRECTORY}:
        if folds.exists():
            epath.Path(folds).rmtree()
