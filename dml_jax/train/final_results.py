"""The final results of a run: metrics on the unseen classes, beside controls, and the embeddings behind them.

Controls are what a trained network has to beat: raw pixels and a colour histogram, the model before the first step, and
the published weights that it started from.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from dml_jax import config as configs
from dml_jax.config import Config, Data, Refine
from dml_jax.console import Console
from dml_jax.data import samplers, transforms
from dml_jax.data.split import Split, with_gallery
from dml_jax.errors import DataError, UserError
from dml_jax.evaluation import geometry, protocol, refinement_batches
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.methods.contract import Method, zeros
from dml_jax.train import other_models, split_metrics
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.embedding import read_ahead
from dml_jax.train.experiment import Experiment
from dml_jax.train.model import published_method
from dml_jax.train.split_metrics import Embeddings
from dml_jax.train.state import TrainState

SIDE = 32  # of the images whose pixels are compared
BINS = (12, 4, 4)  # of hue, saturation and value


def final(experiment: Experiment, state: TrainState, model: str, console: Console) -> tuple[dict[str, Any], Embeddings]:
    """(contents of `results.json` and the arrays of `query_results.ARRAYS`, embeddings of the test split).

    `model` says how it was selected.
    """
    config, test = experiment.config, experiment.splits["test"]
    tested = split_metrics.compiled(experiment, state).embed(state, "test", test)
    console.print("evaluating on the unseen classes")
    prefixes = config.evaluation.prefixes
    found = {name: _metrics(experiment, rows, per_query=True, prefixes=prefixes) for name, rows in tested.items()}
    reading = split_metrics.reported(config.evaluation, found)
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
            results |= geometry.pair_errors(embeddings["test"], test.labels)
        except UserError as problem:  # e.g. a single image of each class
            console.warn(f"no error rates of pairs: {problem}")
    if config.evaluation.refine:
        results["refined"] = _refined(experiment, state, embeddings, console)
    results |= {
        "model": model,
        "step": int(state.step),
        "steps": experiment.steps,
        "length": {"steps": config.train.steps, "epochs": config.train.epochs},
        "precision": config.train.precision,
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
        embeddings,
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
        found = {name: without_learning(config, part) for name, part in with_gallery({"test": test}).items()}
        rows = {control: {name: part[control] for name, part in found.items()} for control in found["test"]}
        name = "untrained"
        if config.head:
            name = "head on frozen features"
        elif experiment.start or config.backbone.pretrained != "none":
            name = "before training"
        rows[name] = _embeddings(experiment, experiment.method, other_models.initial_state(experiment, console))
        controls = {name: _metrics(experiment, found) for name, found in rows.items()}
    if config.backbone.pretrained != "none":
        console.print("evaluating the published weights without further training")
        try:
            controls["published weights without further training"] = _published(experiment)
        except UserError as problem:  # they may have been moved since; the results are not lost for that
            console.warn(str(problem))
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
            refined, facts = refined_embeddings(experiment.config, refine, state, kind, embeddings)
        except UserError as problem:
            console.warn(str(problem))
            results[kind] = {"problem": str(problem)}
            continue
        if facts.get("noise"):
            console.print(f"{kind}: {facts['clusters']:,} clusters and {facts['noise']:,} images of noise")
        seconds = {"seconds": round(time.monotonic() - start, 3)}
        results[kind] = facts | seconds | _metrics(experiment, refined)
    return results


def without_learning(config: Config, split: Split) -> dict[str, np.ndarray]:
    """Float32 [N, D] of the images of a split by control, "raw pixels" and "colour histogram"."""
    measures = {"raw pixels": pixels, "colour histogram": histogram}
    rows: dict[str, list[np.ndarray]] = {name: [] for name in measures}
    transform = transforms.evaluation(config.data)
    read = lambda index: transform(split.read(index, None))  # noqa: E731
    for batch in read_ahead(read, [range(len(split.labels))], config.evaluation.batch_size):
        for image in batch.images:
            if isinstance(image, DataError):
                raise image
            for name, measure in measures.items():
                rows[name].append(measure(image))
    return {name: np.stack(found) for name, found in rows.items()}


def pixels(image: np.ndarray) -> np.ndarray:
    """The pixels of an image uint8 [H, W, 3], reduced to at most `SIDE` x `SIDE`: float32 [D]."""
    small = Image.fromarray(image)
    small = small.resize((min(small.width, SIDE), min(small.height, SIDE)), Image.Resampling.BOX)
    return np.asarray(small, np.float32).ravel()


def histogram(image: np.ndarray) -> np.ndarray:
    """Square roots of the shares of the pixels with each hue, saturation and value: uint8 [H, W, 3] -> float32 [192].

    The dot product of two is the Bhattacharyya coefficient of the histograms.
    """
    hsv = np.asarray(Image.fromarray(image).convert("HSV")).reshape(-1, 3)
    hue, saturation, value = (hsv[:, i].astype(np.int64) * bins // 256 for i, bins in enumerate(BINS))
    cells = (hue * BINS[1] + saturation) * BINS[2] + value
    counts = np.bincount(cells, minlength=int(np.prod(BINS)))
    return np.sqrt(counts / len(hsv)).astype(np.float32)


def batches_from_clusters(labels: np.ndarray, data: Data, seed: int) -> Groups:
    """Batches drawn from clusters in the way the authors of MPN draw training batches from classes.

    Of `data`, `batch_size` and `images_per_class` are read; labels int [N] in 0..C-1 are the clusters of the images.
    """
    size = data.images_per_class
    chunks = max(2, min(data.batch_size, len(labels)) // size)  # two clusters always fill two chunks or more
    sampler = samplers.build(replace(data, sampler="mpn", batch_size=chunks * size), labels, seed)
    return Groups(np.stack([sampler.batch(step) for step in range(sampler.first_step(1))]), chunks * size)


def refined_embeddings(
    config: Config, refine: Callable[..., jax.Array], state: TrainState, kind: Refine, embeddings: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The embeddings [N, D'] after message passing in batches of one kind, and numbers of clusters and noise images.

    `embeddings` are float32 [N, D] of "test" and, if there is one, of "gallery". The method's own batches
    ("reciprocal") refine the queries only, as its authors do; all other kinds refine queries and gallery alike.
    """
    data = config.data
    if kind == "reciprocal":
        gallery = embeddings.get("gallery")
        queries = refine(state.params, state.model_state, embeddings["test"], gallery)
        return embeddings | {"test": np.asarray(queries)}, {}
    points = np.concatenate(list(embeddings.values()))
    facts: dict[str, int] = {}
    if kind == "neighbors":
        chunk = min(data.images_per_class, len(points))
        groups = refinement_batches.neighbor_chunks(
            points, chunk=chunk, chunks=max(1, data.batch_size // data.images_per_class), seed=config.seed
        )
    else:
        options = config.evaluation
        clusters = refinement_batches.cluster(
            points,
            kind,
            count=options.refine_clusters,
            eps=options.refine_eps,
            min_samples=options.refine_min_samples,
            seed=config.seed,
        )
        groups = batches_from_clusters(clusters.labels, data, config.seed)
        facts = {"clusters": clusters.found, "noise": clusters.noise}
    rows = np.asarray(refine(state.params, state.model_state, points, None, groups=groups))
    ends = np.cumsum([len(x) for x in embeddings.values()])[:-1]
    return dict(zip(embeddings, np.split(rows, ends), strict=True)), facts
