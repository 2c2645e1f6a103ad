"""The final results of a run: metrics on the unseen classes, beside controls, and the embeddings behind them."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import config as configs
from dml_jax.analysis import spectra
from dml_jax.console import Console
from dml_jax.errors import UserError
from dml_jax.evaluation import protocol, verification
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.experiment import Experiment
from dml_jax.train.start import warm_start
from dml_jax.train.state import TrainState
from dml_jax.train.testing import controls as without_learning
from dml_jax.train.testing import embedding, pretrained_features, split_metrics, test_time_refinement


def final(
    experiment: Experiment, state: TrainState, model: str, console: Console
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Evaluates a model on the test split.

    Args:
      experiment: of the run.
      state: the model.
      model: how it was selected, for the record.
      console: shows progress and warnings.

    Returns:
      (contents of `results.json` and the arrays of `query_results.ARRAYS`, embeddings float32 [N, D] of "test" and, if
      there is one, "gallery").
    """
    config = experiment.config
    test = experiment.splits["test"]
    embedder = embedding.compile_embedder(experiment)
    embeddings = split_metrics.embed_with_gallery(experiment, embedder, state, "test")
    console.print("evaluating on the unseen classes")
    cluster = config.evaluation.cluster
    results = split_metrics.metrics(
        config, test, embeddings["test"], embeddings.get("gallery"), cluster=cluster, per_query=True, shared=True
    )
    results["protocol"] = protocol.description(
        config.evaluation.protocol,
        cluster=cluster,
        classes=len(test.classes),
        average=config.evaluation.nmi_average,
        gallery=test.gallery is not None,
        **config.evaluation.kmeans,
    )
    if test.gallery is None:
        try:
            results |= verification.summary(embeddings["test"], test.labels)
        except UserError as problem:  # e.g. a single image of each class
            console.print(f"warning: no error rates of pairs: {problem}")
    results["geometry"] = spectra.summary(config, embeddings["test"], test.labels)
    if config.evaluation.refine:
        results["refined"] = _refined(experiment, state, embeddings, console)
    results |= {
        "model": model,
        "step": int(state.step),
        "steps": experiment.steps,
        "length": {"steps": config.train.steps, "epochs": config.train.epochs},
        "config_hash": configs.digest(config),
    }
    controls = {}
    if config.evaluation.controls:
        console.print("evaluating the controls")
        parts = {"test": test} | ({} if test.gallery is None else {"gallery": test.gallery})
        found = {name: without_learning.embeddings(config, part) for name, part in parts.items()}
        rows = {control: {name: part[control] for name, part in found.items()} for control in found["test"]}
        start = warm_start.initial_state(experiment, console)
        rows[_start_name(experiment)] = split_metrics.embed_with_gallery(experiment, embedder, start, "test")
        controls = {
            name: split_metrics.metrics(config, test, found["test"], found.get("gallery"), cluster=cluster, shared=True)
            for name, found in rows.items()
        }
    if config.backbone.pretrained != "none":
        console.print("evaluating the published weights without further training")
        try:
            controls["published weights without further training"] = _published(experiment)
        except UserError as problem:  # they may have been moved since; the results are not lost for that
            console.print(f"warning: {problem}")
    return results | ({"controls": controls} if controls else {}), embeddings


def _published(experiment: Experiment) -> dict[str, Any]:
    """Metrics of the features of the pretrained backbone, see `published`."""
    config, method = experiment.config, pretrained_features.features(experiment.config.backbone)
    variables = method.init(jax.random.key(0), experiments.example_batch(experiment))
    params, model_state = meshes.replicate(experiment.mesh, variables)
    state = TrainState(jnp.zeros((), jnp.int32), params, model_state, ())
    embedder = embedding.compile_embedder(experiment._replace(method=method))
    found = split_metrics.embed_with_gallery(experiment, embedder, state, "test")
    gallery = found.get("gallery")
    return split_metrics.metrics(
        config, experiment.splits["test"], found["test"], gallery, cluster=config.evaluation.cluster, shared=True
    )


def _refined(
    experiment: Experiment, state: TrainState, embeddings: dict[str, np.ndarray], console: Console
) -> dict[str, dict[str, Any]]:
    """Metrics after test-time refinement, by kind of batches.

    If a clustering fails, its entry has a "problem" instead of metrics, so that the results of the model are not lost.
    """
    results: dict[str, dict[str, Any]] = {}
    config, test = experiment.config, experiment.splits["test"]
    for kind in config.evaluation.refine:
        console.print(f"message passing in batches of kind {kind}")
        start = time.monotonic()
        try:
            refined, facts = test_time_refinement.refined(experiment, state, kind, embeddings)
        except UserError as problem:
            console.print(f"warning: {problem}")
            results[kind] = {"problem": str(problem)}
            continue
        if facts.get("noise"):
            console.print(f"{kind}: {facts['clusters']:,} clusters and {facts['noise']:,} images of noise")
        seconds = {"seconds": round(time.monotonic() - start, 3)}
        metrics = split_metrics.metrics(
            config, test, refined["test"], refined.get("gallery"), cluster=config.evaluation.cluster, shared=True
        )
        results[kind] = facts | seconds | metrics
    return results


def _start_name(experiment: Experiment) -> str:
    """What the results call the model before the first step."""
    if experiment.config.head:
        return "head on frozen features"
    return "before training" if experiment.start or experiment.config.backbone.pretrained != "none" else "untrained"
