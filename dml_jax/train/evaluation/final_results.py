"""The final results of a run: metrics on the unseen classes, beside controls, and the embeddings behind them."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import config as configs
from dml_jax.console import Console
from dml_jax.data.split import with_gallery
from dml_jax.errors import UserError
from dml_jax.evaluation import pair_verification, protocol
from dml_jax.methods.contract import Method, zeros
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.evaluation import controls as without_learning
from dml_jax.train.evaluation import readings, refinement, split_metrics
from dml_jax.train.experiment import Experiment
from dml_jax.train.model import published_method
from dml_jax.train.start import warm_start
from dml_jax.train.state import TrainState

Embeddings = dict[str, np.ndarray]  # float32 [N, D] of "test" and, if there is one, "gallery"


def final(experiment: Experiment, state: TrainState, model: str, console: Console) -> tuple[dict[str, Any], Embeddings]:
    """(contents of `results.json` and the arrays of `query_results.ARRAYS`, embeddings of the test split).

    `model` says how it was selected.
    """
    config, test = experiment.config, experiment.splits["test"]
    tested = readings.compiled(experiment, state).embed(state, "test", test)
    console.print("evaluating on the unseen classes")
    prefixes = config.evaluation.prefixes
    found = {name: _metrics(experiment, rows, per_query=True, prefixes=prefixes) for name, rows in tested.items()}
    reading = readings.reported(config.evaluation, found)
    results, embeddings = found[reading], tested[reading]
    if experiment.readings:
        each = {name: {key: value for key, value in of.items() if np.ndim(value) == 0} for name, of in found.items()}
        results |= {"reading": reading, "readings": each}
    results["protocol"] = protocol.description(
        config.evaluation.protocol,
        cluster=config.evaluation.cluster,
        classes=len(test.classes),
        average=config.evaluation.nmi_average,
        gallery=test.gallery is not None,
        **config.evaluation.kmeans,
        metric=experiment.method.distance,
        lone_queries=config.evaluation.lone_queries,
    )
    if test.gallery is None:
        try:
            results |= pair_verification.summary(embeddings["test"], test.labels)
        except UserError as problem:  # e.g. a single image of each class
            console.print(f"warning: no error rates of pairs: {problem}")
    if config.evaluation.refine:
        results["refined"] = _refined(experiment, state, embeddings, console)
    results |= {
        "model": model,
        "step": int(state.step),
        "steps": experiment.steps,
        "length": {"steps": config.train.steps, "epochs": config.train.epochs},
        "config_hash": configs.digest(config),
    }
    controls = _controls(experiment, console)
    return results | ({"controls": controls} if controls else {}), embeddings


def _embeddings(experiment: Experiment, method: Method, state: TrainState) -> Embeddings:
    embedder, parts = experiment.embedder(method.embed), with_gallery({"test": experiment.splits["test"]})
    return {name: embedder.embed_split(state, part) for name, part in parts.items()}


def _metrics(experiment: Experiment, embeddings: Embeddings, **more: Any) -> dict[str, Any]:
    options = experiment.config.evaluation
    return split_metrics.metrics(
        options,
        experiment.method.distance,
        experiment.splits["test"],
        embeddings["test"],
        embeddings.get("gallery"),
        cluster=options.cluster,
        shared=True,
        **more,
    )


def _controls(experiment: Experiment, console: Console) -> dict[str, dict[str, Any]]:
    """Metrics by control: without learning, of the model before the first step, and of published weights alone."""
    config, test = experiment.config, experiment.splits["test"]
    controls = {}
    if config.evaluation.controls:
        console.print("evaluating the controls")
        found = {name: without_learning.embeddings(config, part) for name, part in with_gallery({"test": test}).items()}
        rows = {control: {name: part[control] for name, part in found.items()} for control in found["test"]}
        start = warm_start.initial_state(experiment, console)
        rows[_start_name(experiment)] = _embeddings(experiment, experiment.method, start)
        controls = {name: _metrics(experiment, found) for name, found in rows.items()}
    if config.backbone.pretrained != "none":
        console.print("evaluating the published weights without further training")
        try:
            controls["published weights without further training"] = _published(experiment)
        except UserError as problem:  # they may have been moved since; the results are not lost for that
            console.print(f"warning: {problem}")
    return controls


def _published(experiment: Experiment) -> dict[str, Any]:
    """Metrics of the features of the pretrained backbone."""
    method = published_method(experiment.config.backbone)
    variables = method.init(jax.random.key(0), zeros(experiment.config.data.batch_size, experiment.shape))
    params, model_state = meshes.replicate(experiment.mesh, variables)
    state = TrainState(jnp.zeros((), jnp.int32), params, model_state, ())
    return _metrics(experiment, _embeddings(experiment, method, state))


def _refined(
    experiment: Experiment, state: TrainState, embeddings: Embeddings, console: Console
) -> dict[str, dict[str, Any]]:
    """Metrics after test-time refinement, by kind of batches.

    If a clustering fails, its entry has a "problem" instead of metrics, so that the results of the model are not lost.
    """
    results: dict[str, dict[str, Any]] = {}
    refine = experiment.method.hooks.refine
    assert refine is not None
    for kind in experiment.config.evaluation.refine:
        console.print(f"message passing in batches of kind {kind}")
        start = time.monotonic()
        try:
            refined, facts = refinement.refined(experiment.config, refine, state, kind, embeddings)
        except UserError as problem:
            console.print(f"warning: {problem}")
            results[kind] = {"problem": str(problem)}
            continue
        if facts.get("noise"):
            console.print(f"{kind}: {facts['clusters']:,} clusters and {facts['noise']:,} images of noise")
        seconds = {"seconds": round(time.monotonic() - start, 3)}
        results[kind] = facts | seconds | _metrics(experiment, refined)
    return results


def _start_name(experiment: Experiment) -> str:
    """What the results call the model before the first step."""
    if experiment.config.head:
        return "head on frozen features"
    return "before training" if experiment.start or experiment.config.backbone.pretrained != "none" else "untrained"
