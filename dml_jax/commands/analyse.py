"""Analyses a model: figures with the numbers behind them, gathered in a report:

    dml-jax analyse --model=runs/digits_hist [--what=tsne,classes] [--split=test]
    dml-jax analyse --model=lite0 --data=photos/ [--output=analysis]

The first analyses a run on its own data, the second any model on labelled images: a folder with one subfolder per
class, or the test split of a prepared data set. Without --what, everything that applies to the run. For curves over the
training, train with --config.train.keep_every=N. Writes analysis/*.png, *.svg and *.csv into the work directory and
renews report.html, which has the first five from the start. With --data, those down to the maps apply, except health,
overfitting and calibration; figures and report.html are written to --output.

  retrieval     retrieved images, worst and best queries
  classes       Recall@1 by class, most confused pairs
  components    map on the first principal components
  distances     histograms of pairs of one class and of different classes
  verification  error rates over the threshold of "same class", ROC curve
  health        distances, effective rank, gradient, active pairs, proxies over the steps
  overfitting   retrieval of training classes beside test classes over the kept models
  calibration   whether a threshold keeps its error rate on other classes
  spectra       singular values, density, uniformity, alignment; for DiVA also by task
  tsne, umap    maps with thumbnails; umap needs pip install umap-learn
  attention     MPN: divergence from uniform, weight on the own class, one node's weights over the kept models
  influence     MPN: whose pixels a prediction depends on
  heat_maps     CRT: where prototypes respond
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import dml_jax
from dml_jax import config as configs
from dml_jax import files
from dml_jax.analysis import findings, run_report
from dml_jax.analysis.labelled_images import LabelledImages
from dml_jax.analysis.subjects import BY_SPLIT, OF_EMBEDDINGS, SUBJECTS
from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.commands import cli, model_options, runtime
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError, DataError, printable, suggest
from dml_jax.inference import labelled
from dml_jax.inference.model import is_run, locate
from dml_jax.train.records import workdir
from dml_jax.train.testing import readings

SPLITS = ("test", "train", "validation")
# Keys of the run's configuration that may be overridden, e.g. because its data has moved.
MOVABLE = ("data.path", "data.threads", "data.workers", "data.prefetch", "evaluation.batch_size")


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    model_options.add(flags)
    flags.add_argument("--data", metavar="DIRECTORY", help="labelled images: class folders or a prepared data set")
    flags.add_argument("--output", metavar="DIRECTORY", help="to write, with --data (default: analysis)")
    flags.add_argument("--what", metavar="NAME,NAME", help="analyses (default: all that apply)")
    flags.add_argument("--split", default="test", help="test (default), train or validation")
    flags.add_argument("--batch", type=int, default=0, help="of attention and influence: training batch, default 0")
    flags.add_argument("--node", type=int, default=0, help="of attention: image of the batch, by class, default 0")
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, makes the analyses and renews the report.

    Raises:
      UserError: invalid input.
    """
    options, overrides = parser().read(arguments)
    subjects = chosen_subjects(options)
    model_options.check(options)
    if options.data:
        check_images(options, overrides)
        analyse_images(options, subjects)
        return
    if options.output:
        raise ConfigError("--output: needs --data; the analyses of a run are written into its work directory")
    config, directory = run_config(options, overrides)

    from dml_jax import run as runs

    runtime.enable_compilation_cache()
    runtime.keep_freed_memory()
    console = Console(quiet=options.quiet)
    experiment, state = runs.restore(config, directory, options.checkpoint, console)
    experiment = readings.embedding_as(experiment, readings.name_in_results(config, directory))
    if options.split not in experiment.splits:
        raise ConfigError(f"--split={options.split}: the run has none; give {' or '.join(experiment.splits)}")
    check_batch(options, config.data.batch_size, experiment.steps)
    run = TrainedRun(directory, experiment, state, console, batch=options.batch, node=options.node)
    modules = applicable(run, subjects, required=options.what is not None)
    suffix = "" if options.split == "test" else f"-{options.split}"
    for name, module in modules.items():
        console.print(f"analysing: {name}")
        own = suffix if name in BY_SPLIT else ""
        found = module.findings(run, options.split)
        title = f"{module.TITLE}: {options.split} images" if own else module.TITLE
        findings.write(directory, name, title, run.step, found, suffix=own)
    console.print(f"figures and numbers: {directory / findings.DIRECTORY}")
    renew_report(run)


def chosen_subjects(options: Namespace) -> tuple[str, ...]:
    """The names in --what, or all of the split.

    Raises:
      ConfigError: an unknown name or split, or an analysis that is of no split in particular.
    """
    if options.split not in SPLITS:
        raise ConfigError(f"--split={options.split}: {suggest(options.split, SPLITS)}")
    if options.what is None:
        if options.data:
            return OF_EMBEDDINGS
        return SUBJECTS if options.split == "test" else BY_SPLIT
    names = tuple(dict.fromkeys(options.what.split(",")))
    for name in names:
        if name not in SUBJECTS:
            raise ConfigError(f"--what={name}: there is no such analysis; {suggest(name, SUBJECTS)}")
        if options.data and name not in OF_EMBEDDINGS:
            raise ConfigError(f"--what={name}: needs a trained run on its own data; leave out --data, or this analysis")
        if options.split != "test" and name not in BY_SPLIT:
            raise ConfigError(f"--split={options.split}: {name} is not made by split; leave --split out")
    return names


def check_images(options: Namespace, overrides: dict[str, str]) -> None:
    """Raises ConfigError for options that only a run on its own data has."""
    if overrides:
        raise ConfigError(f"--config.{next(iter(overrides))}: is not used with --data; remove it")
    if options.split != "test":
        raise ConfigError(f"--split={options.split}: is not used with --data; remove it")


def check_batch(options: Namespace, size: int, steps: int) -> None:
    """Raises ConfigError unless the run has a training batch --batch, and it an image --node."""
    for key, count in (("batch", steps), ("node", size)):
        if not 0 <= getattr(options, key) < count:
            raise ConfigError(f"--{key}={getattr(options, key)}: must be in 0 to {count - 1}")


def analyse_images(options: Namespace, subjects: tuple[str, ...]) -> None:
    """Analyses a model on labelled images, and writes the figures and a report."""
    data = files.expand_path("--data", options.data)
    output = files.expand_path("--output", options.output or "analysis")
    if (output.exists() and not output.is_dir()) or files.below_a_file(output) or (output / "config.json").exists():
        raise ConfigError(f"--output={output}: is a file or holds a run; give another directory")
    runtime.enable_compilation_cache()
    runtime.keep_freed_memory()
    model = dml_jax.load(options.model, options.checkpoint, trust_code=options.trust_code)
    run = LabelledImages(output, model, labelled.load(data, model.config.data), Console(quiet=options.quiet))
    modules = applicable(run, subjects, required=options.what is not None)
    output.mkdir(parents=True, exist_ok=True)
    for name in SUBJECTS:
        (output / findings.STANDARD_DIRECTORY / f"{name}.json").unlink(missing_ok=True)  # of another model or data
    for name, module in modules.items():
        run.console.print(f"analysing: {name}")
        found = module.findings(run, "test")
        findings.write(output, name, module.TITLE, run.step, found, to=findings.STANDARD_DIRECTORY)
    split = run.split("test")
    lead = f"{options.model} on {len(split.labels):,} images of {len(split.classes):,} classes in {options.data}"
    run_report.write_analyses(output, Path(options.data).name or options.data, printable(lead))
    run.console.print(f"report: {output / 'report.html'}")


def run_config(options: Namespace, overrides: dict[str, str]) -> tuple["Config", Path]:
    """The configuration of the run, with overrides applied, and its work directory.

    Raises:
      UserError: no run there, an override of what the run was trained with, or its data are not there.
    """
    if str(options.model).startswith(files.BUCKETS):
        raise ConfigError(f"--model={options.model}: analyses are written into the run; copy it to a directory first")
    directory = locate(options.model)
    if not is_run(directory):
        raise ConfigError(f"--data: missing; {options.model} has no data of its own, give a folder of class folders")
    values = workdir.read_config(directory)["config"]
    for key, text in overrides.items():
        if key not in MOVABLE:
            raise ConfigError(f"--config.{key}: belongs to the run; only {', '.join(MOVABLE)} can be given")
        config_files.apply_override(values, key, text)
    if options.trust_code:
        configs.import_code(values)
    config = configs.resolve(values, given=overrides)
    if config.data.path and not Path(config.data.path).expanduser().is_dir():
        raise DataError(
            f"data.path={config.data.path}: the data of the run are not there; give their directory with "
            "--config.data.path=DIRECTORY"
        )
    return config, directory


def applicable(run: TrainedRun, subjects: tuple[str, ...], *, required: bool) -> dict[str, Any]:
    """The modules of the subjects that apply to the run, by name; says why others do not.

    Raises:
      ConfigError: one does not apply although it is required.
    """
    modules = {}
    for name in subjects:
        module = findings.subject(name)
        reason = module.reason_not_to(run) if hasattr(module, "reason_not_to") else ""
        if reason and required:
            raise ConfigError(f"--what={name}: {reason}")
        if reason:
            run.console.print(f"left out: {name} ({reason})")
        else:
            modules[name] = module
    return modules


def renew_report(run: TrainedRun) -> None:
    """Writes `report.html` again, with all analyses; a run that is not finished has none yet."""
    path = run.directory / "results.json"
    if not path.exists():
        run.console.print("the run is not finished, so there is no report yet; finishing it will include the analyses")
        return
    results = files.read_json(path, dict, "write it again with --mode=evaluate --output", CheckpointError)
    run_report.write_page(run.directory, run.config, results, run.metrics())
    run.console.print(f"report: {run.directory / 'report.html'}")
