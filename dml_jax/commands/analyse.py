"""Analyses a model: figures with the numbers behind them, gathered in a report:

    dml-jax analyse --model=runs/digits_hist [--what=tsne,classes] [--split=test]
    dml-jax analyse --model=lite0 --data=photos/ [--output=analysis]
    dml-jax analyse --model=runs/A --compare=runs/B,untrained [--what=spectra,tsne] [--output=analysis]

The first analyses a run on its own data, the second any model on labelled images: a folder with one subfolder per
class, or the test split of a prepared data set. Without --what, everything that applies to the run. For curves over the
training, train with --config.train.keep_every=N. Writes analysis/*.png and *.csv into the work directory and
renews report.html, which has the first five from the start. With --data or --compare, figures and report.html are
written to --output. --compare shows several models side by side: runs (with --data, any models), the first run before
its training ("untrained"), and after message passing ("refined", of a batch).

  retrieval     retrieved images, worst and best queries
  classes       Recall@1 by class, most confused pairs
  components    map on the first principal components (*)
  distances     histograms of pairs of one class and of different classes (*)
  verification  error rates over the threshold of "same class", ROC curve
  overfitting   retrieval of training classes beside test classes over the kept models (*); not with --data
  spectra       singular values, density, uniformity, alignment; for DiVA also by task (*)
  tsne          map with thumbnails (*)
  attention     MPN: divergence from uniform, weight on the own class, one node's weights over the kept models
  influence     MPN: whose pixels a prediction depends on
  heat_maps     CRT: where prototypes respond

(*) with --compare
"""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dml_jax
from dml_jax import files
from dml_jax.analysis import attention, drawing, findings, run_report
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import Subject
from dml_jax.analysis.run_report import SUBJECTS
from dml_jax.commands import cli, model_options, runtime
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.errors import ConfigError, DataError, counted, printable, suggest
from dml_jax.inference import labelled
from dml_jax.inference.model import is_run, locate
from dml_jax.train.model import reading_in_results
from dml_jax.train.records import workdir

SPLITS = ("test", "train", "validation")
VIEWS = ("untrained", "refined")  # of the run of --model, in --compare
# Keys of the run's configuration that may be overridden, e.g. because its data has moved.
MOVABLE = ("data.path", "data.threads", "data.workers", "evaluation.batch_size")


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    model_options.add(flags)
    flags.add_argument("--compare", metavar="MODEL,MODEL", help="further models, untrained or refined")
    flags.add_argument("--data", metavar="DIRECTORY", help="labelled images: class folders or a prepared data set")
    flags.add_argument("--output", metavar="DIRECTORY", help="with --data or --compare (default: analysis)")
    flags.add_argument("--what", metavar="NAME,NAME", help="analyses (default: all that apply)")
    flags.add_argument("--split", default="test", help="test (default), train, validation or batch, a training batch")
    flags.add_argument(
        "--batch", type=int, default=0, help="training batch, also of attention and influence, default 0"
    )
    flags.add_argument("--node", type=int, default=0, help="of attention: image of the batch, by class, default 0")
    flags.add_argument("--classes", metavar="NAME,NAME|N", help="of maps: shown classes, by name or N drawn ones")
    flags.add_argument("--seed", type=int, default=0, help="of the drawn classes, default 0")
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, makes the analyses and renews the report."""
    options, overrides = parser().read(arguments)
    subjects = chosen_subjects(options)
    model_options.check(options)
    if options.data:
        check_images(options, overrides)
    if options.data or options.compare:
        analyse_apart(options, overrides, subjects)
        return
    if options.output:
        raise ConfigError("--output: needs --data or --compare; the analyses of a run go into its work directory")
    run = trained_run(options.model, options, overrides)
    run.classes = chosen_classes(options, run)
    directory, console = run.directory, run.console
    suffix = "" if options.split == "test" else f"-{options.split}"
    for name, subject in applicable(run, subjects, required=options.what is not None).items():
        console.print(f"analysing: {name}")
        own = suffix if subject.by_split else ""
        title = f"{subject.title}: {options.split} images" if own else subject.title
        findings.write(directory, name, title, run.step, subject.findings(run, options.split), suffix=own)
    console.print(f"figures and numbers: {directory / findings.DIRECTORY}")
    renew_report(run)


def chosen_subjects(options: Namespace) -> dict[str, Subject]:
    """The subjects in --what, or all that fit the other options."""
    splits = (*SPLITS, "batch")
    if options.split not in splits:
        raise ConfigError(f"--split={options.split}: {suggest(options.split, splits)}")
    compared = ", ".join(name for name, subject in SUBJECTS.items() if subject.compared)
    limits: list[tuple[bool, Callable[[Subject], bool], str]] = [
        (bool(options.data), lambda subject: not subject.of_run,
         "--what={}: needs a trained run on its own data; leave out --data, or this analysis"),
        (bool(options.compare), lambda subject: subject.compared, f"--what={{}}: not with --compare, only {compared}"),
        (options.split == "batch", lambda subject: subject.compared and subject.by_split,
         "--what={}: not with --split=batch, which is too few images"),
        (options.split != "test", lambda subject: subject.by_split,
         f"--split={options.split}: {{}} is not made by split; leave --split out"),
        (bool(options.classes), lambda subject: subject.is_map,
         "--what={}: shows no chosen classes; leave out --classes, or this analysis"),
    ]  # fmt: skip
    limits = [limit for limit in limits if limit[0]]
    if options.what is None:
        return {name: s for name, s in SUBJECTS.items() if all(fits(s) for _, fits, _ in limits)}
    chosen = cli.choices("--what", options.what, SUBJECTS)
    for name in chosen:
        for _, fits, message in limits:
            if not fits(SUBJECTS[name]):
                raise ConfigError(message.format(name))
    return {name: SUBJECTS[name] for name in chosen}


def check_images(options: Namespace, overrides: dict[str, str]) -> None:
    """Raises ConfigError for options that only a run on its own data has."""
    if overrides:
        raise ConfigError(f"--config.{next(iter(overrides))}: is not used with --data; remove it")
    if options.split != "test":
        raise ConfigError(f"--split={options.split}: is not used with --data; remove it")


def analyse_apart(options: Namespace, overrides: dict[str, str], subjects: dict[str, Subject]) -> None:
    """Analyses a model on labelled images, or compares models, and writes the figures and a report."""
    output = files.expand_path("--output", options.output or "analysis")
    if (output.exists() and not output.is_dir()) or files.below_a_file(output) or (output / "config.json").exists():
        raise ConfigError(f"--output={output}: is a file or holds a run; give another directory")
    runs = opened(options, overrides, output)
    run = next(iter(runs.values()))
    classes = chosen_classes(options, run)
    for name, each in runs.items():
        if missing := set(classes) - set(each.split(options.split).classes):
            raise ConfigError(f"--classes={min(missing)}: not in the images of {name}")
        each.classes = classes
    found = applicable(run, subjects, required=options.what is not None)
    output.mkdir(parents=True, exist_ok=True)
    for name in SUBJECTS:
        (output / findings.STANDARD_DIRECTORY / f"{name}.json").unlink(missing_ok=True)  # of another model or data
    for name, subject in found.items():
        run.console.print(f"analysing: {name}")
        several = options.compare and findings.side_by_side(runs, subject, options.split)
        made = several or subject.findings(run, options.split)
        findings.write(output, name, subject.title, run.step, made, to=findings.STANDARD_DIRECTORY)
    split = run.split(options.split)
    models = f"{options.model}, {options.compare}" if options.compare else options.model
    count = f"{counted(len(split.labels), 'image')} of {counted(len(np.unique(split.labels)), 'class')}"
    place = f"in {options.data}" if options.data else f"of {run.config.data.name} ({options.split})"
    title = (Path(options.data).name or options.data) if options.data else " and ".join(runs)
    run_report.write_analyses(output, printable(title), printable(f"{models} on {count} {place}"))
    run.console.print(f"report: {output / 'report.html'}")


def applicable(run: EvaluatedModel, subjects: dict[str, Subject], *, required: bool) -> dict[str, Subject]:
    """The subjects that apply to the run; one that does not is a ConfigError if it is required."""
    found = {}
    for name, subject in subjects.items():
        if not (reason := subject.reason_not_to(run)):
            found[name] = subject
        elif required:
            raise ConfigError(f"--what={name}: {reason}")
        else:
            run.console.print(f"left out: {name} ({reason})")
    return found


def renew_report(run: EvaluatedModel) -> None:
    """Writes `report.html` again, with all analyses; a run that is not finished has none yet."""
    results = workdir.read_results(run.directory)
    if not results:
        run.console.print("the run is not finished, so there is no report yet; finishing it will include the analyses")
        return
    run_report.write_page(run.directory, run.config, results, run.metrics())
    run.console.print(f"report: {run.directory / 'report.html'}")


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
