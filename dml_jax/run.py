"""A run from its configuration to its results: what the main command does in each of its modes."""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax import config as configs
from dml_jax import files
from dml_jax.analysis import report
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.data import pipeline
from dml_jax.data.split import Split
from dml_jax.errors import CheckpointError, UserError
from dml_jax.evaluation import protocol, verification
from dml_jax.export import arrays, stablehlo
from dml_jax.train import experiment as experiments
from dml_jax.train import inference, loop, mesh, refinement, step, teacher, warm_start, workdir
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.experiment import Experiment
from dml_jax.train.jsonl import Records
from dml_jax.train.signals import Stop
from dml_jax.train.state import TrainState

PAIRED = 10_000  # images of which all pairs are compared for the same/different threshold


def train(config: Config, directory: Path, console: Console, stop: Stop) -> None:
    """Trains (or goes on training), evaluates the selected model, exports its embeddings, writes the report.

    Raises:
      UserError: before training, for what the user can mend.
      Interrupted: on a signal, with a checkpoint on disk.
    """
    workdir.compare(directory, config)
    experiment = experiments.build(config)
    first = mesh.first()
    with workdir.opened(directory, active=first), console:
        workdir.compare(directory, config)  # again: another run may have come and gone since
        if finished(directory, experiment):
            console.say(f"{directory}: finished already, {experiment.steps} steps; see {directory / 'report.html'}")
            console.say("--mode=evaluate judges it once more, --mode=export writes the embeddings of all its splits")
            return
        experiment = teacher.attended(experiment, console)
        introduce(experiment, directory, console)
        if first:
            images = experiment.splits["train"]
            facts = workdir.describe(
                config, experiments.data_hash(experiment), len(images.classes), len(images.labels), experiment.shape
            )
            facts |= {"teacher": experiment.teacher.origin} if experiment.teacher else {}
            _same_sources(directory, facts)
            files.write_json(directory / "config.json", facts)
        store = checkpoints(experiment, directory, console, writing=True)
        metrics = Records(directory / "metrics.jsonl", first)
        timing = Records(directory / "timing.jsonl", first)
        state = loop.train(experiment, store, metrics, timing, console, stop)
        if config.train.select != "last":
            state = store.selected("reported", config.train.select)
        store.close()
        stop.at_once()
        results, embeddings = conclude(experiment, state, config.train.select, console)
        if first:
            export(experiment, directory, {"test": experiment.splits["test"]}, embeddings, int(state.step))
            report.write(directory, config, results, embeddings["test"], experiment.splits["test"], metrics.read())
            files.write_json(directory / "results.json", results)
            report.print_table(config, results, console.rich)
            console.say(f"report: {directory / 'report.html'}   embeddings: {directory / 'embeddings'}")


def evaluate(
    config: Config, directory: Path, checkpoint: str, console: Console, output: Path | None = None
) -> dict[str, Any]:
    """Judges a model on the test split; prints the table, writes the numbers to `output` and returns them.

    The model is a checkpoint of the run in `directory` or, where none is, what `init_from` holds: so are published
    checkpoints judged.
    """
    if config.init_from and not (directory / "config.json").exists():
        experiment = experiments.build(config)
        state, checkpoint = warm_start.begin(experiment, console), "init_from"
    else:
        experiment, state = restored(config, directory, checkpoint, console)
    model = config.train.select if checkpoint == "reported" else checkpoint
    results, _ = conclude(experiment, state, model, console)
    report.print_table(config, results, console.rich)
    if output is not None and mesh.first():
        files.write_json(output, results)
    return results


def export_all(config: Config, directory: Path, checkpoint: str, console: Console) -> None:
    """Writes the embeddings of every split with a checkpoint of a run, and its model as StableHLO."""
    experiment, state = restored(config, directory, checkpoint, console)
    embedder = inference.compiled(experiment)
    splits = dict(experiment.splits)
    if splits["test"].gallery is not None:
        splits["gallery"] = splits["test"].gallery
    found = {
        name: inference.split(experiment, embedder, state.params, state.model_state, split)
        for name, split in splits.items()
    }
    export(experiment, directory, splits, found, int(state.step))
    console.say(f"embeddings of {', '.join(splits)} at step {int(state.step)}: {directory / 'embeddings'}")
    params, model_state = jax.device_get((state.params, state.model_state))
    file = directory / "model.stablehlo"
    if mesh.first():
        model = lambda images: experiment.method.embed(params, model_state, images)  # noqa: E731
        stablehlo.write(file, model, experiment.shape)
        apart = stablehlo.deviation(file, model, experiment.shape)
        console.say(f"model, for any program with jax: {file} (differs from this one by at most {apart:.1e})")


def check(config: Config, console: Console) -> None:
    """Validates configuration and data, makes one step and stops; nothing is written.

    Raises:
      DivergedError: the loss or the gradient of that step is not finite.
    """
    experiment = teacher.attended(experiments.build(config), console)
    introduce(experiment, None, console)
    state = warm_start.begin(experiment, console)
    key = mesh.replicate(experiment.mesh, experiments.key(config))
    with pipeline.training(
        experiment.splits["train"], experiment.sampler, config.data,
        seed=config.seed, views=experiment.method.views, stop=1,
        host=jax.process_index(), hosts=jax.process_count(),
    ) as batches:  # fmt: skip
        batch = experiments.batch(experiment, *next(batches))
    update = (
        jax.jit(step.build(experiment.method, experiment.optimizer, experiment.augment), donate_argnums=0)
        .lower(state, batch, key)
        .compile()
    )
    memory = update.memory_analysis()
    terms = loop.finite(update(state, batch, key)[1], 1)
    if memory is not None:
        need = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 2**20
        console.say(f"a training step needs about {need:.0f} MiB on each device")
    console.say(f"one step made, loss {terms['loss']:.4f}: the configuration is valid")


def checkpoints(experiment: Experiment, directory: Path, console: Console, *, writing: bool) -> Checkpoints:
    """The checkpoints of a work directory."""
    return Checkpoints(
        directory / "checkpoints",
        lambda: experiments.template(
            experiment.config, experiment.method, experiment.optimizer, experiment.shape, experiment.mesh
        ),
        lambda text: console.say(f"warning: {text}"),
        writing=writing,
    )


def finished(directory: Path, experiment: Experiment) -> bool:
    """Whether the run's results are on disk for all its steps."""
    try:
        return json.loads((directory / "results.json").read_text(encoding="utf-8"))["steps"] == experiment.steps
    except (OSError, ValueError, KeyError, TypeError):
        return False


def restored(config: Config, directory: Path, checkpoint: str, console: Console) -> tuple[Experiment, TrainState]:
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
    experiment = experiments.build(config)
    _same_data(directory, facts, experiment, console)
    store = checkpoints(experiment, directory, console, writing=False)
    state = store.selected(checkpoint, config.train.select)
    store.close()
    return experiment, state


def _same_sources(directory: Path, facts: dict[str, Any]) -> None:
    """Raises CheckpointError where the run began with other images or another teacher."""
    if not (directory / "config.json").exists():
        return
    began = workdir.read_config(directory)
    for key, what in (("data_hash", "data set"), ("teacher", "teacher")):
        if began.get(key) != facts.get(key):
            raise CheckpointError(f"{directory}: the {what} has changed since this run began; give another --workdir")


def _same_data(directory: Path, facts: dict[str, Any], experiment: Experiment, console: Console) -> None:
    """Raises CheckpointError where the data cannot be the run's; warns where they are others of the same sizes."""
    data, images = experiment.config.data, experiment.splits["train"]
    for key, here in (
        ("classes", len(images.classes)),
        ("images", len(images.labels)),
        ("shape", list(experiment.shape)),
    ):
        if facts[key] != here:
            raise CheckpointError(
                f"data.path={data.path}: has training {key} {here}, the run in {directory} had {facts[key]}; give its "
                "data, or judge others with dml_jax.embed and dml_jax.evaluate"
            )
    if facts["data_hash"] != experiments.data_hash(experiment):
        console.say(f"warning: data.path={data.path}: not the images that the run in {directory} was trained on")


def introduce(experiment: Experiment, directory: Path | None, console: Console) -> None:
    """Says what is about to be done."""
    config = experiment.config
    sizes = "  ".join(
        f"{name} {len(split.labels):,} images of {len(split.classes):,} classes"
        for name, split in experiment.splits.items()
    )
    console.say(
        f"{config.name}: {config.method.name} on {config.data.name}, "
        f"{experiment.steps} steps of {config.data.batch_size}"
    )
    console.say(f"data: {sizes}")
    shapes = experiments.template(
        experiment.config, experiment.method, experiment.optimizer, experiment.shape, experiment.mesh
    )
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes.params))
    console.say(f"{count:,} parameters, {jax.device_count()} {jax.devices()[0].platform} device(s)")
    if directory is not None:
        console.say(f"work directory: {directory}")


def conclude(
    experiment: Experiment, state: TrainState, model: str, console: Console
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The results of a model on the test split, beside its controls, and the embeddings they rest on."""
    config = experiment.config
    test = experiment.splits["test"]
    embedder = inference.compiled(experiment)
    found = {"test": inference.split(experiment, embedder, state.params, state.model_state, test)}
    if test.gallery is not None:
        found["gallery"] = inference.split(experiment, embedder, state.params, state.model_state, test.gallery)
    console.say("evaluating on the unseen classes")
    results = _metrics(config, test, found["test"], found.get("gallery"))
    results["protocol"] = protocol.description(
        config.evaluation.protocol,
        cluster=config.evaluation.cluster,
        classes=len(test.classes),
        gallery=test.gallery is not None,
    )
    if test.gallery is None:
        results |= _verified(found["test"], test.labels)
    if config.evaluation.refine:
        results["refined"] = _refined(experiment, state, test, found, console)
    results |= {
        "model": model,
        "step": int(state.step),
        "steps": experiment.steps,
        "config_hash": configs.digest(config),
    }
    if config.evaluation.controls:
        first = experiments.initial(experiment)
        untrained = inference.split(experiment, embedder, first.params, first.model_state, test)
        results["controls"] = {
            "raw pixels": _metrics(config, test, _pixels(config, test)),
            "untrained": _metrics(config, test, untrained),
        }
    return results, found


def _metrics(config: Config, split: Split, embeddings: np.ndarray, gallery: np.ndarray | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if split.gallery is not None:
        options = {"gallery": gallery, "gallery_labels": split.gallery.labels}
    judged = config.evaluation
    return protocol.evaluate(
        embeddings, split.labels, ks=judged.ks, protocol=judged.protocol, cluster=judged.cluster, **options
    )


def _refined(
    experiment: Experiment, state: TrainState, split: Split, found: dict[str, np.ndarray], console: Console
) -> dict[str, dict[str, Any]]:
    """The numbers of the embeddings the method refines at test time, for each kind of batches.

    Where a clustering fails, its kind has a "problem" in place of numbers: a trained model is not lost by it.
    """
    results: dict[str, dict[str, Any]] = {}
    for kind in experiment.config.evaluation.refine:
        console.say(f"message passing in batches of kind {kind}")
        start = time.monotonic()
        try:
            vectors, facts = refinement.refined(experiment, state, kind, found)
        except UserError as problem:
            console.say(f"warning: {problem}")
            results[kind] = {"problem": str(problem)}
            continue
        if facts.get("noise"):
            console.say(f"{kind}: {facts['clusters']:,} clusters and {facts['noise']:,} images of noise")
        seconds = {"seconds": round(time.monotonic() - start, 3)}
        results[kind] = facts | seconds | _metrics(experiment.config, split, vectors["test"], vectors.get("gallery"))
    return results


def _verified(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Same class or not, over all pairs of at most `PAIRED` images drawn at random."""
    rows = np.random.default_rng(0).permutation(len(labels))[:PAIRED]
    verified = verification.error_rates(embeddings[rows], labels[rows])
    return {"equal_error_rate": verified.equal_error_rate, "equal_error_cosine": verified.threshold}


def _pixels(config: Config, split: Split) -> np.ndarray:
    """Raw pixels as embeddings [N, H·W·3]."""
    with pipeline.evaluation(split, config.data, config.evaluation.batch_size) as batches:
        return np.concatenate([images[:valid].reshape(valid, -1) for images, valid in batches]).astype(np.float32)


def export(
    experiment: Experiment,
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
            config_hash=configs.digest(experiment.config),
            step=number,
        )
