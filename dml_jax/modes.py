"""The modes of the main command: train, evaluate, export, check."""

import socket
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax import config as configs
from dml_jax import files, final_results
from dml_jax.analysis import run_report
from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.backbones.weights import pretrained
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError, DataError
from dml_jax.export import embedding_files, query_results, stablehlo
from dml_jax.train import experiment as experiments
from dml_jax.train import loop, run_rules
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_memory, mesh, process_group
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import manifest, trackers, workdir
from dml_jax.train.records import timing as timing_summary
from dml_jax.train.records.jsonl import JsonLines
from dml_jax.train.records.trace import Trace
from dml_jax.train.start import frozen_features, teacher, warm_start
from dml_jax.train.state import TrainState, check_finite, evaluated
from dml_jax.train.testing import embedding
from dml_jax.train.variants import frozen_groups

HEAD = "head"  # in a work directory: that of the training on frozen features which came first
PER_PROCESS = ("data.path", "data.threads", "data.workers", "data.prefetch")  # may differ between processes


def train(
    config: Config,
    directory: Path,
    console: Console,
    stop: Stop,
    log: Sequence[str] = (),
    traced: tuple[int, int] | None = None,
    given: Collection[str] = (),
) -> None:
    """Trains or resumes, evaluates the selected model, exports its embeddings and writes the report.

    Args:
      config: of the run.
      directory: its work directory.
      console: shows progress.
      stop: SIGTERM or Ctrl-C.
      log: where the metrics are shown besides `metrics.jsonl`.
      traced: first and last step of a trace.
      given: keys of the configuration that the user gave, see `needs.report`.

    Raises:
      UserError: before training, if the configuration, the data or the work directory do not fit.
      Interrupted: on a signal, with a checkpoint on disk.
    """
    workdir.check_same_run(directory, config)
    experiment = build(config)
    started = (directory / "config.json").exists()  # such a run can be continued all the same
    run_rules.check(experiment, () if started else given, console)
    if traced and traced[1] > experiment.steps:
        raise ConfigError(f"--profile={traced[0]}:{traced[1]}: the run has {experiment.steps} steps")
    main = mesh.is_main_process()
    metrics = trackers.TrackedLines(directory / "metrics.jsonl", log, config, main)
    with workdir.locked(directory, active=main), metrics, console:
        workdir.check_same_run(directory, config)  # again, because another run may have used it in the meantime
        facts = facts_of(experiment)
        if is_finished(directory, experiment):
            _check_same_sources(directory, {key: facts[key] for key in ("config", "data_hash")})
            console.print(f"{directory}: already finished, {experiment.steps} steps; see {directory / 'report.html'}")
            console.print("--mode=evaluate evaluates it again, --mode=export writes the embeddings of all splits")
            return
        experiment = teacher.with_teacher(experiment, console)
        print_summary(experiment, directory, console)
        facts |= {"teacher": experiment.teacher.origin} if experiment.teacher else {}
        if main:
            for name in _with_gallery(experiment):  # before training, not when they are written
                embedding_files.check_replaceable(directory / "embeddings" / name)
            _check_same_sources(directory, workdir.identity(facts))
            files.write_json(directory / "config.json", facts)
        console.log_to(directory / "logs" / f"{process_name()}.log")
        console.log(
            f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}, "
            f"{jax.local_device_count()} of {jax.device_count()} devices ({jax.devices()[0].device_kind})"
        )
        if config.head:
            experiment = train_head(experiment, directory, console, stop)
        state = fit(experiment, directory, facts, console, stop, metrics, traced)
        stop.stop_immediately()
        with device_memory.of_evaluation(config):
            final, embeddings = final_results.final(experiment, state, config.train.select, console)
        queries = query_results.split_off(final)
        if main:
            timing = JsonLines(directory / "timing.jsonl").read()
            final["timing"] = timing_summary.summary(timing, config.data.batch_size)
            final["machine"] = timing_summary.machine()
            final["data"] = {
                name: {"images": len(split.labels), "classes": len(np.unique(split.labels))}
                for name, split in _with_gallery(experiment).items()
            }
            query_results.write(directory, queries)
            _write_embeddings(experiment, directory, embeddings, int(state.step), finished=True)
            run_report.write(TrainedRun(directory, experiment, state, console, embeddings), final)
            files.write_json(directory / "results.json", final)
            metrics.finish(final)
            run_report.print_table(config, final, console.rich)
            console.print(f"report: {directory / 'report.html'}   embeddings: {directory / 'embeddings'}")


def fit(
    experiment: Experiment,
    directory: Path,
    facts: dict[str, Any],
    console: Console,
    stop: Stop,
    metrics: JsonLines,
    traced: tuple[int, int] | None = None,
) -> TrainState:
    """Trains or resumes in a work directory, on images or on features; returns the reported state."""
    on_progress = lambda done: stop.raise_if_stopped()  # noqa: E731
    experiment = frozen_features.with_features(experiment, directory, console, on_progress)
    config = experiment.config
    checkpoints = open_checkpoints(experiment, directory, console, facts, writing=True)
    trace = Trace(directory / "profile" / process_name(), traced)
    timing = JsonLines(directory / "timing.jsonl", mesh.is_main_process())
    outputs = loop.Outputs(checkpoints, metrics, timing, console, trace)
    with closing(checkpoints):
        with device_memory.of_training(config):
            state = evaluated(loop.train(experiment, outputs, stop))
        return checkpoints.select("reported", config.train.select) if config.train.select != "last" else state


def facts_of(experiment: Experiment) -> dict[str, Any]:
    """The contents of `config.json`, except for the teacher."""
    split, data_hash = experiment.splits["train"], experiments.data_hash(experiment.splits)
    return workdir.provenance(experiment.config, data_hash, len(split.classes), len(split.labels), experiment.shape)


def process_name() -> str:
    """What the files of this process are called."""
    return f"host-{jax.process_index()}"


def head_config(config: Config) -> Config:
    """The configuration of the training on frozen features that precedes a run."""
    assert config.head is not None
    made = replace(config, name=f"{config.name}-{HEAD}", train=config.head, head=None)
    return configs.resolve(asdict(made), given=())  # without the augmentation that features do not have


def train_head(experiment: Experiment, directory: Path, console: Console, stop: Stop) -> Experiment:
    """Trains everything but the backbone, in `<workdir>/head`; the experiment that starts from there."""
    config, head = experiment.config, directory / HEAD
    console.print(f"training all but the backbone first, on frozen features: {head}")
    first = build(head_config(config))
    facts = facts_of(first)
    if mesh.is_main_process():
        head.mkdir(exist_ok=True)
        files.write_json(head / "config.json", facts)
    fit(first, head, facts, console, stop, JsonLines(head / "metrics.jsonl", mesh.is_main_process()))
    return experiment._replace(start=str(head))


def evaluate(
    config: Config,
    directory: Path,
    checkpoint: str,
    console: Console,
    output: Path | None = None,
    given: Collection[str] = (),
) -> dict[str, Any]:
    """Evaluates a model on the test split; prints the table, writes the results to `output` and returns them.

    The model is a checkpoint of the run in `directory` or, if there is no run, the one that `init_from` names, so that
    published checkpoints can be evaluated.
    """
    if config.init_from and not (directory / "config.json").exists():
        experiment = build(config)
        state, checkpoint = warm_start.initial_state(experiment, console), "init_from"
    else:
        experiment, state = restore(config, directory, checkpoint, console)
    run_rules.check(experiment, given, console, of="evaluation.")
    model = config.train.select if checkpoint == "reported" else checkpoint
    with device_memory.of_evaluation(config):
        final, _ = final_results.final(experiment, state, model, console)
    query_results.split_off(final)
    run_report.print_table(config, final, console.rich)
    if output is not None and mesh.is_main_process():
        files.write_json(output, final)
    return final


def export(config: Config, directory: Path, checkpoint: str, console: Console) -> None:
    """Writes the embeddings of every split for a checkpoint of a run, and its model as StableHLO."""
    experiment, state = restore(config, directory, checkpoint, console)
    embedder = embedding.compile_embedder(experiment)
    splits = _with_gallery(experiment)
    with device_memory.of_evaluation(config):
        embeddings = {name: embedding.embed_split(experiment, embedder, state, split) for name, split in splits.items()}
    finished = not workdir.unfinished(directory, int(state.step), reported=checkpoint == "reported")
    _write_embeddings(experiment, directory, embeddings, int(state.step), finished=finished)
    console.print(f"embeddings of {', '.join(splits)} at step {int(state.step)}: {directory / 'embeddings'}")
    params, model_state = jax.tree.map(mesh.to_host, (state.params, state.model_state))
    file = directory / "model.stablehlo"
    if mesh.is_main_process():
        model = lambda images: experiment.method.embed(params, model_state, images)  # noqa: E731
        difference = stablehlo.write(file, model, experiment.shape)
        console.print(f"model, for any program with JAX: {file} (largest difference from this one {difference:.1e})")


def check(config: Config, console: Console, given: Collection[str] = ()) -> None:
    """Validates configuration and data and makes one training step; nothing is written.

    Raises:
      DivergedError: the loss, the gradient or the state after that step is not finite.
    """
    experiment = build(config)
    run_rules.check(experiment, given, console)
    experiment = teacher.with_teacher(experiment, console)
    if config.head:
        build(head_config(config))
    print_summary(experiment, None, console)
    with device_memory.of_training(config):
        state = warm_start.initial_state(experiment, console)
        key = mesh.replicate(experiment.mesh, experiments.run_key(config))
        with experiments.training_batches(experiment, 0, 1) as batches:
            batch = experiments.device_batch(experiment, *next(batches))
        update = experiments.jitted_step(experiment).lower(state, batch, key).compile()
        memory = update.memory_analysis()
        state, values = update(state, batch, key)
        metrics = loop.check_finite(values, 1)
    check_finite(state)
    if memory is not None:
        needed = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 2**20
        console.print(f"a training step needs about {needed:.0f} MiB on each device")
    console.print(f"one training step done, loss {metrics['loss']:.4f}: the configuration is valid")


def build(config: Config) -> Experiment:
    """`experiment.build`, with a check that all processes have built the same.

    They may differ in where they read the data and how (`PER_PROCESS`), not in anything else.

    Raises:
      UserError: see `experiment.build`, or the processes differ in configuration, data or code.
    """
    experiment = experiments.build(config)
    options = {key: value for key, value in configs.flatten(asdict(config)).items() if key not in PER_PROCESS}
    libraries = {f"version of {name}": number for name, number in workdir.versions().items()}
    digests = {"data (SHA-256)": experiments.data_hash(experiment.splits), "code (SHA-256)": workdir.source_digest()}
    process_group.check_same(options | libraries | digests)
    return experiment


def open_checkpoints(
    experiment: Experiment, directory: Path, console: Console, facts: dict[str, Any], *, writing: bool
) -> Checkpoints:
    """The checkpoints of a work directory, of the run with these facts."""
    return Checkpoints(
        directory / "checkpoints",
        lambda: experiments.template(experiment),
        lambda text: console.print(f"warning: {text}"),
        run=workdir.identity(facts),
        writing=writing,
    )


def is_finished(directory: Path, experiment: Experiment) -> bool:
    """Whether the results for all steps of the run are on disk."""
    with suppress(DataError):
        results: dict[str, Any] = files.read_json(directory / "results.json", dict[str, Any])
        return results.get("steps") == experiment.steps
    return False


def restore(config: Config, directory: Path, checkpoint: str, console: Console) -> tuple[Experiment, TrainState]:
    """The experiment of an existing run and one of its states.

    Args:
      config: its configuration.
      directory: its work directory.
      checkpoint: "reported", "latest", "best" or a step.
      console: shows warnings.

    Raises:
      CheckpointError: no run there, no such checkpoint, or data that does not fit its model.
    """
    facts = workdir.read_config(directory)
    workdir.check_same_run(directory, config)
    experiment = build(config)
    _check_data_fits(directory, facts, experiment, console)
    checkpoints = open_checkpoints(experiment, directory, console, facts, writing=False)
    with closing(checkpoints):
        state = checkpoints.select(checkpoint, config.train.select)
    reported = checkpoint == "reported"
    if reported and (unfinished := workdir.unfinished(directory, int(state.step), reported=True)):
        console.print(f"warning: {unfinished}")
    return experiment, state


def _check_same_sources(directory: Path, facts: dict[str, Any]) -> None:
    """Raises CheckpointError if the directory, or its newest checkpoint, is of a run with other facts."""
    known = (directory / "config.json").exists()
    if known:
        workdir.check_same_facts(directory, workdir.read_config(directory), facts)
    if newest := manifest.newest(directory / "checkpoints" / "latest"):
        checkpoint, run = newest
        if run is not None:
            workdir.check_same_facts(checkpoint, run, facts)
        elif not known:
            raise CheckpointError(
                f"{checkpoint}: does not say which run it belongs to, and {directory / 'config.json'} is missing; "
                "restore that file from a copy, or give another --workdir"
            )


def _check_data_fits(directory: Path, facts: dict[str, Any], experiment: Experiment, console: Console) -> None:
    """Raises CheckpointError if the data cannot be that of the run; warns if it differs but has the same sizes."""
    data, split = experiment.config.data, experiment.splits["train"]
    sizes = {"classes": len(split.classes), "images": len(split.labels), "shape": list(experiment.shape)}
    for key, here in sizes.items():
        if facts[key] != here:
            raise CheckpointError(
                f"data.path={data.path}: has training {key} {here}, the run in {directory} had {facts[key]}; give the "
                "data of the run, or evaluate other data with dml-jax embed and dml-jax evaluate"
            )
    if facts["data_hash"] != experiments.data_hash(experiment.splits):
        console.print(f"warning: data.path={data.path}: not the images that the run in {directory} was trained on")


def print_summary(experiment: Experiment, directory: Path | None, console: Console) -> None:
    """Prints what will be trained on which data and devices.

    Raises:
      ConfigError: nothing would be trained.
    """
    config = experiment.config
    sizes = "  ".join(
        f"{name} {len(split.labels):,} images of {len(split.classes):,} classes"
        for name, split in experiment.splits.items()
    )
    console.print(
        f"{config.name}: {config.method.name} on {config.data.name}, "
        f"{experiment.steps} steps of {config.data.batch_size}"
    )
    console.print(f"data: {sizes}")
    if note := experiment.splits["test"].note:
        console.print(note)
    params = experiments.template(experiment).params
    frozen_groups.check_trainable(config.train.groups, experiment.method, params)
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    console.print(f"{count:,} parameters, {jax.device_count()} {jax.devices()[0].platform} device(s)")
    if pixels := pretrained.overridden_pixels(asdict(config.backbone)):
        console.print(f"warning: {config.backbone.pretrained} was trained with {', '.join(pixels)}")
    if directory is not None:
        console.print(f"work directory: {directory}")


def _with_gallery(experiment: Experiment) -> dict[str, Any]:
    """The splits by name, including the gallery of the test split if it has one."""
    gallery = experiment.splits["test"].gallery
    return experiment.splits if gallery is None else {**experiment.splits, "gallery": gallery}


def _write_embeddings(
    experiment: Experiment, directory: Path, embeddings: dict[str, np.ndarray], checkpoint_step: int, *, finished: bool
) -> None:
    """Writes embeddings, by name of their split, below `<workdir>/embeddings`."""
    if not mesh.is_main_process():
        return
    splits, data_hash = _with_gallery(experiment), experiments.data_hash(experiment.splits)
    for name, rows in embeddings.items():
        split = splits[name]
        embedding_files.write(
            directory / "embeddings" / name,
            rows,
            split.labels,
            split.ids,
            config_hash=configs.digest(experiment.config),
            step=checkpoint_step,
            finished=finished,
            data_hash=data_hash,
            metadata={"class_name": [split.classes[label] for label in split.labels], **split.metadata},
        )
