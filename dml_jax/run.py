"""A run from its configuration to its results: what the main command does in each of its modes."""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax import config as configs
from dml_jax.analysis import report
from dml_jax.config import Config
from dml_jax.console import Screen
from dml_jax.data import pipeline
from dml_jax.data.split import Split
from dml_jax.errors import CheckpointError, UserError
from dml_jax.evaluation import protocol, verification
from dml_jax.export import arrays, stablehlo
from dml_jax.train import experiment, inference, loop, mesh, refinement, step, teacher, warm_start, workdir
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.experiment import Experiment
from dml_jax.train.jsonl import Records
from dml_jax.train.signals import Stop
from dml_jax.train.state import State

PAIRED = 10_000  # images of which all pairs are compared for the same/different threshold


def train(config: Config, directory: Path, screen: Screen, stop: Stop) -> None:
    """Trains (or goes on training), evaluates the selected model, exports its embeddings, writes the report.

    Raises:
      UserError: before training, for what the user can mend.
      Interrupted: on a signal, with a checkpoint on disk.
    """
    workdir.compare(directory, config)
    parts = experiment.build(config)
    first = mesh.first()
    with workdir.opened(directory, active=first), screen:
        workdir.compare(directory, config)  # again: another run may have come and gone since
        if finished(directory, parts):
            screen.say(f"{directory}: finished already, {parts.steps} steps; see {directory / 'report.html'}")
            screen.say("--mode=evaluate judges it once more, --mode=export writes the embeddings of all its splits")
            return
        parts = teacher.attended(parts, screen)
        introduce(parts, directory, screen)
        if first:
            images = parts.splits["train"]
            facts = workdir.describe(
                config, experiment.data_hash(parts), len(images.classes), len(images.labels), parts.shape
            )
            facts |= {"teacher": parts.teacher.origin} if parts.teacher else {}
            _same_sources(directory, facts)
            workdir.write_json(directory / "config.json", facts)
        store = checkpoints(parts, directory, screen, writing=True)
        metrics = Records(directory / "metrics.jsonl", first)
        timing = Records(directory / "timing.jsonl", first)
        state = loop.train(parts, store, metrics, timing, screen, stop)
        if config.train.select != "last":
            state = store.selected("reported", config.train.select)
        store.close()
        stop.at_once()
        results, embeddings = conclude(parts, state, config.train.select, screen)
        if first:
            export(parts, directory, {"test": parts.splits["test"]}, embeddings, int(state.step))
            report.write(directory, config, results, embeddings["test"], parts.splits["test"], metrics.read())
            workdir.write_json(directory / "results.json", results)
            report.table(config, results, screen.console)
            screen.say(f"report: {directory / 'report.html'}   embeddings: {directory / 'embeddings'}")


def evaluate(
    config: Config, directory: Path, checkpoint: str, screen: Screen, output: Path | None = None
) -> dict[str, Any]:
    """Judges a model on the test split; prints the table, writes the numbers to `output` and returns them.

    The model is a checkpoint of the run in `directory` or, where none is, what `init_from` holds: so are published
    checkpoints judged.
    """
    if config.init_from and not (directory / "config.json").exists():
        parts = experiment.build(config)
        state, checkpoint = warm_start.begin(parts, screen), "init_from"
    else:
        parts, state = restored(config, directory, checkpoint, screen)
    model = config.train.select if checkpoint == "reported" else checkpoint
    results, _ = conclude(parts, state, model, screen)
    report.table(config, results, screen.console)
    if output is not None and mesh.first():
        workdir.write_json(output, results)
    return results


def export_all(config: Config, directory: Path, checkpoint: str, screen: Screen) -> None:
    """Writes the embeddings of every split with a checkpoint of a run, and its model as StableHLO."""
    parts, state = restored(config, directory, checkpoint, screen)
    embedder = inference.compiled(parts)
    splits = dict(parts.splits)
    if splits["test"].gallery is not None:
        splits["gallery"] = splits["test"].gallery
    found = {
        name: inference.split(parts, embedder, state.params, state.method, split) for name, split in splits.items()
    }
    export(parts, directory, splits, found, int(state.step))
    screen.say(f"embeddings of {', '.join(splits)} at step {int(state.step)}: {directory / 'embeddings'}")
    params, remembered = jax.device_get((state.params, state.method))
    file = directory / "model.stablehlo"
    if mesh.first():
        model = lambda images: parts.method.embed(params, remembered, images)  # noqa: E731
        stablehlo.write(file, model, parts.shape)
        apart = stablehlo.deviation(file, model, parts.shape)
        screen.say(f"model, for any program with jax: {file} (differs from this one by at most {apart:.1e})")


def check(config: Config, screen: Screen) -> None:
    """Validates configuration and data, makes one step and stops; nothing is written.

    Raises:
      DivergedError: the loss or the gradient of that step is not finite.
    """
    parts = teacher.attended(experiment.build(config), screen)
    introduce(parts, None, screen)
    state = warm_start.begin(parts, screen)
    key = mesh.replicate(parts.mesh, experiment.key(config))
    with pipeline.training(
        parts.splits["train"], parts.sampler, config.data, seed=config.seed, views=parts.method.views, stop=1,
        host=jax.process_index(), hosts=jax.process_count(),
    ) as batches:  # fmt: skip
        batch = experiment.batch(parts, *next(batches))
    update = jax.jit(step.build(parts.method, parts.optimizer), donate_argnums=0).lower(state, batch, key).compile()
    memory = update.memory_analysis()
    terms = loop.finite(update(state, batch, key)[1], 1)
    if memory is not None:
        need = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 2**20
        screen.say(f"a training step needs about {need:.0f} MiB on each device")
    screen.say(f"one step made, loss {terms['loss']:.4f}: the configuration is valid")


def checkpoints(parts: Experiment, directory: Path, screen: Screen, *, writing: bool) -> Checkpoints:
    """The checkpoints of a work directory."""
    return Checkpoints(
        directory / "checkpoints",
        lambda: experiment.template(parts.config, parts.method, parts.optimizer, parts.shape, parts.mesh),
        lambda text: screen.say(f"warning: {text}"),
        writing=writing,
    )


def finished(directory: Path, parts: Experiment) -> bool:
    """Whether the run's results are on disk for all its steps."""
    try:
        return json.loads((directory / "results.json").read_text(encoding="utf-8"))["steps"] == parts.steps
    except (OSError, ValueError, KeyError, TypeError):
        return False


def restored(config: Config, directory: Path, checkpoint: str, screen: Screen) -> tuple[Experiment, State]:
    """The parts of an existing run and one of its states.

    Args:
      config: its configuration.
      directory: its work directory.
      checkpoint: "reported", "latest", "best" or a step.
      screen: gets warnings.

    Raises:
      CheckpointError: no run there, no such checkpoint, or data that its model was not made for.
    """
    facts = workdir.read_config(directory)
    workdir.compare(directory, config)
    parts = experiment.build(config)
    _same_data(directory, facts, parts, screen)
    store = checkpoints(parts, directory, screen, writing=False)
    state = store.selected(checkpoint, config.train.select)
    store.close()
    return parts, state


def _same_sources(directory: Path, facts: dict[str, Any]) -> None:
    """Raises CheckpointError where the run began with other images or another teacher."""
    if not (directory / "config.json").exists():
        return
    began = workdir.read_config(directory)
    for key, what in (("data_hash", "data set"), ("teacher", "teacher")):
        if began.get(key) != facts.get(key):
            raise CheckpointError(f"{directory}: the {what} has changed since this run began; give another --workdir")


def _same_data(directory: Path, facts: dict[str, Any], parts: Experiment, screen: Screen) -> None:
    """Raises CheckpointError where the data cannot be the run's; warns where they are others of the same sizes."""
    data, images = parts.config.data, parts.splits["train"]
    for key, here in (("classes", len(images.classes)), ("images", len(images.labels)), ("shape", list(parts.shape))):
        if facts[key] != here:
            raise CheckpointError(
                f"data.path={data.path}: has training {key} {here}, the run in {directory} had {facts[key]}; give its "
                "data, or judge others with dml_jax.embed and dml_jax.evaluate"
            )
    if facts["data_hash"] != experiment.data_hash(parts):
        screen.say(f"warning: data.path={data.path}: not the images that the run in {directory} was trained on")


def introduce(parts: Experiment, directory: Path | None, screen: Screen) -> None:
    """Says what is about to be done."""
    config = parts.config
    sizes = "  ".join(
        f"{name} {len(split.labels):,} images of {len(split.classes):,} classes" for name, split in parts.splits.items()
    )
    screen.say(
        f"{config.name}: {config.method.name} on {config.data.name}, {parts.steps} steps of {config.data.batch_size}"
    )
    screen.say(f"data: {sizes}")
    shapes = experiment.template(parts.config, parts.method, parts.optimizer, parts.shape, parts.mesh)
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes.params))
    screen.say(f"{count:,} parameters, {jax.device_count()} {jax.devices()[0].platform} device(s)")
    if directory is not None:
        screen.say(f"work directory: {directory}")


def conclude(
    parts: Experiment, state: State, model: str, screen: Screen
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The results of a model on the test split, beside its controls, and the embeddings they rest on."""
    config = parts.config
    test = parts.splits["test"]
    embedder = inference.compiled(parts)
    found = {"test": inference.split(parts, embedder, state.params, state.method, test)}
    if test.gallery is not None:
        found["gallery"] = inference.split(parts, embedder, state.params, state.method, test.gallery)
    screen.say("judging the unseen classes")
    results = _judged(config, test, found["test"], found.get("gallery"))
    results["protocol"] = protocol.describe(
        config.evaluation.protocol,
        cluster=config.evaluation.cluster,
        classes=len(test.classes),
        gallery=test.gallery is not None,
    )
    if test.gallery is None:
        results |= _verified(found["test"], test.labels)
    if config.evaluation.refine:
        results["refined"] = _refined(parts, state, test, found, screen)
    results |= {
        "model": model,
        "step": int(state.step),
        "steps": parts.steps,
        "config_hash": configs.digest(config),
    }
    if config.evaluation.controls:
        first = experiment.initial(parts)
        untrained = inference.split(parts, embedder, first.params, first.method, test)
        results["controls"] = {
            "raw pixels": _judged(config, test, _pixels(config, test)),
            "untrained": _judged(config, test, untrained),
        }
    return results, found


def _judged(config: Config, split: Split, embeddings: np.ndarray, gallery: np.ndarray | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if split.gallery is not None:
        options = {"gallery": gallery, "gallery_labels": split.gallery.labels}
    judged = config.evaluation
    return protocol.judge(
        embeddings, split.labels, ks=judged.ks, protocol=judged.protocol, cluster=judged.cluster, **options
    )


def _refined(
    parts: Experiment, state: State, split: Split, found: dict[str, np.ndarray], screen: Screen
) -> dict[str, dict[str, Any]]:
    """The numbers of the embeddings the method refines at test time, for each kind of batches.

    Where a clustering fails, its kind has a "problem" in place of numbers: a trained model is not lost by it.
    """
    results: dict[str, dict[str, Any]] = {}
    for kind in parts.config.evaluation.refine:
        screen.say(f"message passing in batches of kind {kind}")
        start = time.monotonic()
        try:
            vectors, facts = refinement.refined(parts, state, kind, found)
        except UserError as problem:
            screen.say(f"warning: {problem}")
            results[kind] = {"problem": str(problem)}
            continue
        if facts.get("noise"):
            screen.say(f"{kind}: {facts['clusters']:,} clusters and {facts['noise']:,} images of noise")
        seconds = {"seconds": round(time.monotonic() - start, 3)}
        results[kind] = facts | seconds | _judged(parts.config, split, vectors["test"], vectors.get("gallery"))
    return results


def _verified(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Same class or not, over all pairs of at most `PAIRED` images drawn at random."""
    rows = np.random.default_rng(0).permutation(len(labels))[:PAIRED]
    verified = verification.verify(embeddings[rows], labels[rows])
    return {"equal_error_rate": verified.equal_error, "equal_error_cosine": verified.threshold}


def _pixels(config: Config, split: Split) -> np.ndarray:
    """Raw pixels as embeddings [N, H·W·3]."""
    with pipeline.testing(split, config.data, config.evaluation.batch_size) as batches:
        return np.concatenate([images[:valid].reshape(valid, -1) for images, valid in batches]).astype(np.float32)


def export(
    parts: Experiment,
    directory: Path,
    splits: dict[str, Split],
    embeddings: dict[str, np.ndarray],
    number: int,
) -> None:
    """Writes the arrays of some splits below `<workdir>/embeddings`."""
    if splits["test"].gallery is not None:
        splits = {**splits, "gallery": splits["test"].gallery}
    for name, split in splits.items():
        arrays.write(
            directory / "embeddings" / name,
            embeddings[name],
            split.labels,
            split.ids,
            config_hash=configs.digest(parts.config),
            step=number,
        )
