"""A run from start to end: train, evaluate, export, report; and other modes of the main command.

To find the call of a loss, follow `main`, this file, `train.loop`, `train.step` and the method.
`train.experiment`, `train.method_wrappers` and `train.optimizers` build the parts of a run.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from dml_jax import buckets, files, seal, table
from dml_jax.analysis import run_report, spectra, worth
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.backbones.weights import converted
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError, counted
from dml_jax.export import embedding_files
from dml_jax.seal import Identity
from dml_jax.train import experiment as experiments
from dml_jax.train import (
    frozen_features,
    length,
    loop,
    model_metrics,
    parameter_groups,
    selection,
    teacher,
    warm_start,
)
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_mesh
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.experiment import Experiment
from dml_jax.train.model import TrainedModel, reading_in_results
from dml_jax.train.records import logs, workdir
from dml_jax.train.step import TrainState, check_finite


@contextmanager
def memory(config: Config) -> Iterator[None]:
    """Context in which running out of device memory becomes a ConfigError with the remedy."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        sizes = config.data.batch_size, config.evaluation.batch_size
        raise ConfigError(
            "data.batch_size={}, evaluation.batch_size={}: need more memory than a device has; set "
            "a smaller batch size or, for training, train.precision=bfloat16, backbone.remat=true "
            "or a larger train.chunks".format(*sizes)
        ) from error


def train(
    config: Config,
    directory: Path,
    console: Console,
    stop: Stop,
    tensorboard: bool = False,
    profile: tuple[int, int] | None = None,
) -> None:
    """Trains or resumes, evaluates the selected model, exports embeddings and writes the report.

    `profile` is the first and the last step to trace.
    """
    resumed = (directory / "config.json").exists()
    config = length.recorded(config, directory)
    workdir.check_same_run(directory, {"config": asdict(config)})
    experiment = experiments.build(config)
    if profile and profile[1] > experiment.steps:
        steps = "{}:{}".format(*profile)
        raise ConfigError(f"--profile={steps}: the run has {experiment.steps} steps")
    is_main = device_mesh.is_main_process()
    with workdir.locked(directory) if is_main else nullcontext(), console:
        record = experiment.provenance()
        if workdir.is_finished(directory, experiment.steps):
            workdir.check_same_run(directory, {key: record[key] for key in ("config", "data_hash")})
            report = directory / "report.html"
            console.print(f"{directory}: already finished, {experiment.steps} steps; see {report}")
            console.print(
                "to evaluate it again, use --mode=evaluate; to embed all splits, --mode=export"
            )
            return

        experiment = teacher.with_teacher(experiment, console)
        if config.train.minutes and not resumed:
            experiment = length.timed(experiment, console)
            config, record = experiment.config, experiment.provenance()
        print_summary(experiment, directory, console)
        record |= {"teacher": experiment.teacher} if experiment.teacher else {}
        if is_main:
            for name in experiment.splits:  # checked before training
                table.check_replaceable(directory / "embeddings" / name)
            # Repeated, because another run may have used the directory before it was locked.
            workdir.check_same_run(directory, record)
            for file in {directory / seal.MANIFEST, buckets.origin(directory / seal.MANIFEST)}:
                file.unlink(missing_ok=True)  # describes a shorter run
            files.write_json(directory / "config.json", record)
        log = directory / "logs" / workdir.process_name()
        console.log_to(log.with_name(f"{log.name}.log"))
        console.log(
            f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}, "
            f"{jax.local_device_count()} of {jax.device_count()} devices "
            f"({jax.devices()[0].device_kind})"
        )
        experiment = frozen_features.with_features(experiment, directory, console, stop)
        show = (
            logs.tensorboard(directory / "tensorboard", config) if tensorboard and is_main else None
        )
        if config.train.select == "folds":
            selection.prepare(experiment, directory, record, console, stop)
        state = loop.train(experiment, directory, record, console, stop, show, profile)
        choice: dict[str, Any] = {}
        if config.train.select == "folds":
            states, choice = selection.keep(experiment, state, directory, record, console, stop)
            state = states[choice["kept"]]
        elif config.train.select != "last":
            state = stored_state(experiment, directory, record, "reported", console)

        stop.stop_immediately()
        results, embeddings = evaluation(experiment, state, config.train.select, console)
        if choice:
            choice["unseen"] = selection.on_unseen(experiment, states, choice["kept"], results)
        queries = embedding_files.split_off_queries(results)
        model = experiment.model(state, results.get("test_variant", ""))
        model_identity = model.identity()
        if not is_main:
            return
        results["identity"] = model_identity.sha256
        if choice:
            results["choice"] = choice
        timing = logs.JsonLines(directory / "timing.jsonl")
        results["timing"] = logs.summary(timing, config.data.batch_size)
        results["machine"] = logs.machine()
        if config.data.name == "folder":  # labels of the user's own, and classes to photograph
            results["worth"] = worth.of_split(experiment.splits["test"], embeddings["test"])
        results["data"] = {
            name: {"images": len(split.labels), "classes": len(np.unique(split.labels))}
            for name, split in experiment.splits.items()
        }
        with files.locked(directory / "embeddings"):
            embedding_files.write_queries(directory, queries)
            write_embeddings(experiment, directory, embeddings, model_identity, finished=True)
            run_report.write(evaluated(experiment, model, directory, console, embeddings), results)
            files.write_json(directory / "results.json", results)
            kind = "latest" if config.train.select == "last" else "best"
            workdir.finish(directory, f"checkpoints/{kind}/{int(state.step)}", model_identity)
        selection.clean_up(directory)
        buckets.upload(directory, "**/*")
        if show:
            scalars = {name: value for name, value in results.items() if isinstance(value, float)}
            final = {f"final/{name}": value for name, value in scalars.items()}
            show({"step": experiment.steps} | final)
        run_report.print_table(config, results, console.rich)
        report, embedded = directory / "report.html", directory / "embeddings"
        console.print(f"report: {report}   embeddings: {embedded}")


def evaluate(
    config: Config, directory: Path, checkpoint: str, console: Console, output: Path | None = None
) -> dict[str, Any]:
    """Evaluates a model on the test split; prints and returns the results, and writes `output`.

    The model is a checkpoint of the run in `directory`. If there is no run, it is the model that
    `init_from` names, so that published checkpoints can be evaluated.
    """
    if config.init_from and not (directory / "config.json").exists():
        experiment = experiments.build(config)
        state, checkpoint = warm_start.initial_state(experiment, console), "init_from"
    else:
        experiment, state = restore(config, directory, checkpoint, console)
    model = config.train.select if checkpoint == "reported" else checkpoint
    results, _ = evaluation(experiment, state, model, console)
    embedding_files.split_off_queries(results)
    run_report.print_table(config, results, console.rich)
    if output is not None and device_mesh.is_main_process():
        files.write_json(output, results)
    return results


def evaluation(
    experiment: Experiment, state: TrainState, model: str, console: Console
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Results and embeddings of `model_metrics.final`; the main process adds the geometry."""
    results, embeddings = model_metrics.final(experiment, state, model, console)
    if device_mesh.is_main_process():  # other processes write no results
        labels = experiment.splits["test"].labels
        results["geometry"] = spectra.summary(experiment.method, embeddings["test"], labels)
    return results, embeddings


def export(config: Config, directory: Path, checkpoint: str, console: Console) -> None:
    """Embeds all splits with a checkpoint of a run and writes the embeddings."""
    experiment, state = restore(config, directory, checkpoint, console)
    model = experiment.model(state, reading_in_results(config, directory))
    embedder, splits = model.embedder(), experiment.splits.items()
    embeddings = {name: embedder.embed_split(model, split) for name, split in splits}
    model_identity = model.identity()
    if not device_mesh.is_main_process():
        return
    finished = not workdir.unfinished(directory, model.step, reported=checkpoint == "reported")
    with files.locked(directory / "embeddings"), workdir.updated(directory, "embeddings/"):
        write_embeddings(experiment, directory, embeddings, model_identity, finished=finished)
    buckets.upload(directory, "embeddings/**/*", seal.MANIFEST)
    folder = directory / "embeddings"
    console.print(f"embeddings of {', '.join(embeddings)} at step {model.step}: {folder}")


def check(config: Config, console: Console) -> None:
    """Validates configuration and data by one training step, without writing files."""
    experiment = experiments.build(config)
    experiment = teacher.with_teacher(experiment, console)
    print_summary(experiment, None, console)
    state = warm_start.initial_state(experiment, console)
    if config.train.feature_views:
        frozen_features.check(experiment, state)
    if config.train.select == "folds":
        list(selection.halves(experiment))
    key = device_mesh.place(experiment.mesh, jax.random.key(config.seed))
    with experiment.batches(0, 1) as batches:
        batch = experiment.device_batch(*next(batches))
    leaves, structure = jax.tree.flatten(state)
    update = experiment.jitted_step(state).lower(leaves, batch, key).compile()
    memory_use = update.memory_analysis()
    leaves, values = update(leaves, batch, key)
    metrics = loop.check_finite(values, 1)
    check_finite(jax.tree.unflatten(structure, leaves))
    if memory_use is not None:
        size = (memory_use.argument_size_in_bytes + memory_use.temp_size_in_bytes) / 2**20
        console.print(f"a training step needs about {size:.0f} MiB on each device")
    console.print(f"one training step done, loss {metrics['loss']:.4f}: the configuration is valid")


def restore(
    config: Config, directory: Path, checkpoint: str, console: Console
) -> tuple[Experiment, TrainState]:
    """The experiment and a state of an existing run with this configuration."""
    record, config = workdir.read_config(directory), length.recorded(config, directory)
    workdir.check_same_run(directory, {"config": asdict(config)}, selecting=False)
    experiment = experiments.build(config)
    option, split = f"data.path={config.data.path}", experiment.splits["train"]
    if (len(split.classes), list(experiment.shape)) != (record["classes"], record["shape"]):
        raise CheckpointError(
            f"{option}: has different training images than the run in {directory}; give its data, "
            "or evaluate other data with dml-jax embed and dml-jax evaluate"
        )
    if record["data_hash"] != experiment.data_hash:
        console.warn(
            f"{option}: these are not the images that the run in {directory} was trained on"
        )
    state = stored_state(experiment, directory, record, checkpoint, console)
    reported = checkpoint == "reported"
    if unfinished := reported and workdir.unfinished(directory, int(state.step), reported=True):
        console.warn(unfinished)
    return experiment, state


def stored_state(
    experiment: Experiment,
    directory: Path,
    record: Mapping[str, Any],
    checkpoint: str,
    console: Console,
) -> TrainState:
    """The state of a checkpoint; `run` are the contents of `config.json`."""
    folder, template = directory / "checkpoints", experiment.template
    with closing(Checkpoints(folder, template, console.warn, run=record, writing=False)) as stored:
        return stored.restore_selected(checkpoint, experiment.config.train.select)


def print_summary(experiment: Experiment, directory: Path | None, console: Console) -> None:
    """Prints model, data and devices; ConfigError if nothing would be trained."""
    config = experiment.config
    sizes = "  ".join(
        f"{name} {counted(len(split.labels), 'image')} of {counted(len(split.classes), 'class')}"
        for name, split in experiment.splits.items()
    )
    length = f"{experiment.steps} steps of {config.data.batch_size}"
    console.print(f"{config.name}: {config.method.name} on {config.data.name}, {length}")
    console.print(f"data: {sizes}")
    if note := experiment.splits["test"].note:
        console.print(note)
    params = experiment.template().params
    parameter_groups.check(config.train.groups, experiment.method, params)
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    devices = f"{jax.device_count()} {jax.devices()[0].platform} device(s)"
    console.print(f"{count:,} parameters, {devices}")
    if pixels := converted.overridden_pixels(asdict(config.backbone)):
        console.warn(f"{config.backbone.pretrained} was trained with {', '.join(pixels)}")
    if directory is not None:
        console.print(f"work directory: {directory}")


def evaluated(
    experiment: Experiment,
    model: TrainedModel,
    directory: Path,
    console: Console,
    embeddings: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> AnalysedModel:
    """The model with the data of its run, for analyses."""

    def before_training() -> TrainedModel:
        return experiment.model(warm_start.initial_state(experiment))

    known_embeddings = dict(embeddings)
    return AnalysedModel(
        directory, model, experiment.splits, console, known_embeddings, before_training
    )


def write_embeddings(
    experiment: Experiment,
    directory: Path,
    embeddings: dict[str, np.ndarray],
    model_identity: Identity,
    *,
    finished: bool,
) -> None:
    """Writes embeddings, by split, below `<workdir>/embeddings`."""
    about: dict[str, Any] = {"identity": model_identity, "finished": finished}
    about["data_hash"] = experiment.data_hash
    for name, rows in embeddings.items():
        split, folder = experiment.splits[name], directory / "embeddings" / name
        columns = {"class_name": [split.classes[label] for label in split.labels], **split.metadata}
        table.write(folder, rows, split.labels, split.ids, metadata=columns, **about)
