"""What `dml-jax analyse` analyses: the run of --model, the models of --compare, the classes of --classes."""

from argparse import Namespace
from pathlib import Path

import numpy as np

import dml_jax
from dml_jax import files
from dml_jax.analysis import attention, drawing
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.commands import runtime
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.errors import ConfigError, DataError, suggest
from dml_jax.inference import labelled
from dml_jax.inference.model import is_run, locate
from dml_jax.train.model import reading_in_results
from dml_jax.train.records import workdir

VIEWS = ("untrained", "refined")  # of the run of --model, in --compare
# Keys of the run's configuration that may be overridden, e.g. because its data has moved.
MOVABLE = ("data.path", "data.threads", "data.workers", "evaluation.batch_size")


def opened(options: Namespace, overrides: dict[str, str], output: Path) -> dict[str, EvaluatedModel]:
    """The models by a name that distinguishes them, the one of --model first."""
    models = [options.model, *(options.compare.split(",") if options.compare else ())]
    if double := {model for model in models if models.count(model) > 1}:
        raise ConfigError(f"--compare={min(double)}: is given twice")
    names = [Path(model).name for model in models]
    runs: dict[str, EvaluatedModel] = {}
    for model, name in zip(models, names, strict=True):
        run = one_opened(model, options, overrides, output, next(iter(runs.values()), None))
        runs[name if names.count(name) == 1 else model] = run
    return runs


def one_opened(
    model: str, options: Namespace, overrides: dict[str, str], output: Path, first: EvaluatedModel | None
) -> EvaluatedModel:
    """One of the models; `first` is the one of --model, None if it is this one."""
    if options.data:
        if model in VIEWS and first:
            raise ConfigError(f"--compare={model}: needs a run on its own data; leave out --data")
        runtime.enable_compilation_cache()
        runtime.keep_freed_memory()
        loaded = dml_jax.load(model, options.checkpoint, trust_code=options.trust_code)
        data = labelled.load(files.expand_path("--data", options.data), loaded.config.data)
        return EvaluatedModel(output, loaded.trained, {"test": data}, Console(quiet=options.quiet))
    if first and model == "untrained":
        return first.untrained()
    if first and model == "refined":
        if options.split != "batch":
            raise ConfigError("--compare=refined: message passing needs a batch; add --split=batch")
        if reason := attention.reason_not_to(first):
            raise ConfigError(f"--compare=refined: {reason}")
        return first.refined()
    run = trained_run(model, options, overrides)
    if first and options.split == "batch":
        if list(run.split("train").ids) != list(first.split("train").ids):
            raise ConfigError(f"--split=batch: {model} was trained on other images than {options.model}")
        run.batch_rows = first.batch_rows
    return run


def trained_run(model: str, options: Namespace, overrides: dict[str, str]) -> EvaluatedModel:
    """A run on its own data."""
    config, directory = run_config(model, options, overrides)

    from dml_jax import run as runs

    runtime.enable_compilation_cache()
    runtime.keep_freed_memory()
    console = Console(quiet=options.quiet)
    experiment, state = runs.restore(config, directory, options.checkpoint, console)
    if options.split not in (*experiment.splits, "batch"):
        raise ConfigError(f"--split={options.split}: the run has none; give {' or '.join(experiment.splits)}")
    check_batch(options, config.data.batch_size, experiment.steps)
    trained = experiment.model(state, reading_in_results(config, directory))
    return runs.evaluated(experiment, trained, directory, console, batch=options.batch, node=options.node)


def run_config(model: str, options: Namespace, overrides: dict[str, str]) -> tuple[Config, Path]:
    """The configuration of the run, with overrides of `MOVABLE` keys, and its work directory."""
    if model.startswith(files.BUCKETS):
        raise ConfigError(f"--model={model}: analyses are written into the run; copy it to a directory first")
    directory = locate(model)
    if not is_run(directory):
        raise ConfigError(f"--data: missing; {model} has no data of its own, give a folder of class folders")
    workdir.read_config(directory)  # explains a missing or damaged file
    for key in overrides.keys() - set(MOVABLE):
        raise ConfigError(f"--config.{key}: belongs to the run; only {', '.join(MOVABLE)} can be given")
    config = config_files.resolved(str(directory / "config.json"), overrides, trust_code=options.trust_code)
    if config.data.path and not Path(config.data.path).expanduser().is_dir():
        raise DataError(
            f"data.path={config.data.path}: the data of the run are not there; give their directory with "
            "--config.data.path=DIRECTORY"
        )
    return config, directory


def check_batch(options: Namespace, size: int, steps: int) -> None:
    """Raises ConfigError unless the run has a training batch --batch, and it an image --node."""
    for key, count in (("batch", steps), ("node", size)):
        if not 0 <= getattr(options, key) < count:
            raise ConfigError(f"--{key}={getattr(options, key)}: must be in 0 to {count - 1}")


def chosen_classes(options: Namespace, run: EvaluatedModel) -> tuple[str, ...]:
    """The classes of --classes, at most as many as can be told apart; none without it."""
    if options.classes is None:
        return ()
    split = run.split(options.split)
    present = [split.classes[label] for label in np.unique(split.labels)]
    if options.classes.isdecimal():
        count, most = int(options.classes), min(len(present), drawing.KINDS)
        if not 0 < count <= most:
            raise ConfigError(f"--classes={count}: must be in 1 to {most}")
        return tuple(present[i] for i in np.sort(np.random.default_rng(options.seed).permutation(len(present))[:count]))
    names = tuple(dict.fromkeys(options.classes.split(",")))
    for name in names:
        if name not in present:
            raise ConfigError(f"--classes={name}: the images have no such class; {suggest(name, present)}")
    if len(names) > drawing.KINDS:
        raise ConfigError(f"--classes: must be at most {drawing.KINDS} classes; colours and markers tell no more apart")
    return names
