"""The analyses of `dml-jax analyse`: of a run in its work directory, or of any models apart from
it."""

from argparse import Namespace
from pathlib import Path

import numpy as np

from dml_jax import drawing, files
from dml_jax import run as trained_runs
from dml_jax.analysis import findings, html, run_report
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import DIRECTORY, STANDARD_DIRECTORY
from dml_jax.analysis.run_report import SUBJECTS
from dml_jax.commands import cli, jax_setup
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.errors import counted, printable
from dml_jax.inference.embedding_model import is_run, locate
from dml_jax.train.model import reading_in_results
from dml_jax.train.records import workdir

# Keys of the run's configuration that may be overridden, e.g. because its data has moved.
MOVABLE = ("data.path", "data.threads", "evaluation.batch_size")


def analyse(options: Namespace, overrides: dict[str, str]) -> None:
    """Writes the figures, the numbers behind them and the report."""
    chosen = SUBJECTS if options.what is None else cli.choices("--what", options.what, SUBJECTS)
    reasons = {name: reason_against(name, options) for name in chosen}
    if options.what is not None:
        cli.refuse(f"--what={name}: {reason}" for name, reason in reasons.items() if reason)
    apart = options.data or options.compare or options.output
    output = files.expand_path("--output", options.output or "analysis")
    unusable = (output.exists() and not output.is_dir()) or files.below_a_file(output)
    cli.require(
        not apart or not (unusable or (output / "config.json").exists()),
        f"--output={output}: is a file or holds a run; give another directory",
    )
    runs = opened(options, overrides, output)
    run = next(iter(runs.values()))
    console, split = run.console, options.split
    for each in runs.values():
        each.classes = chosen_classes(options, each)
    names = []
    for name in (name for name, reason in reasons.items() if not reason):
        reason = SUBJECTS[name].reason_not_to(run)
        cli.require(not (reason and options.what is not None), f"--what={name}: {reason}")
        if reason:
            console.print(f"left out: {name} ({reason})")
        else:
            names.append(name)
    directory, to = (output, STANDARD_DIRECTORY) if apart else (run.directory, DIRECTORY)
    if apart:
        output.mkdir(parents=True, exist_ok=True)
        for name in SUBJECTS:
            (output / to / f"{name}.json").unlink(missing_ok=True)  # of another model or data
    for name in names:
        console.print(f"analysing: {name}")
        subject = SUBJECTS[name]
        several = options.compare and findings.side_by_side(runs, subject, split)
        made = several or subject.findings(run, split)
        beside = (
            subject.by_split and split != "test" and not apart
        )  # the figures of the test images
        title, suffix = (
            (f"{subject.title}: {split} images", f"-{split}") if beside else (subject.title, "")
        )
        findings.write(directory, name, title, run.step, made, suffix=suffix, to=to)
    if apart:
        images = run.split(split)
        models = f"{options.model}, {options.compare}" if options.compare else options.model
        count = (
            f"{counted(len(images.labels), 'image')} of "
            f"{counted(len(np.unique(images.labels)), 'class')}"
        )
        place = f"in {options.data}" if options.data else f"of {run.config.data.name} ({split})"
        title = (Path(options.data).name or options.data) if options.data else " and ".join(runs)
        lead, sections = (
            printable(f"{models} on {count} {place}"),
            findings.read(output, tuple(SUBJECTS)),
        )
        html.write_report(output / "report.html", printable(title), lead, sections)
    else:
        console.print(f"figures and numbers: {directory / DIRECTORY}")
        results = workdir.read_results(directory)
        if not results:
            console.print(
                "the run is not finished, so there is no report yet; finishing it will include "
                "the analyses"
            )
            return
        run_report.write_page(directory, run.config, results)
    console.print(f"report: {directory / 'report.html'}")


def reason_against(name: str, options: Namespace) -> str:
    """Why a subject does not fit the options; empty if it does."""
    subject, compared = (
        SUBJECTS[name],
        ", ".join(name for name, each in SUBJECTS.items() if each.compared),
    )
    reasons = {
        "needs a trained run on its own data, not --data": options.data and subject.of_run,
        f"not with --compare, only {compared}": options.compare and not subject.compared,
        "not with --split=batch, which is too few images": options.split == "batch"
        and not subject.compared,
        "is not made by split; leave --split out": options.split != "test" and not subject.by_split,
        "shows no chosen classes; leave --classes out": options.classes and not subject.is_map,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def opened(options: Namespace, overrides: dict[str, str], output: Path) -> dict[str, AnalysedModel]:
    """The models by a name that distinguishes them, the one of --model first."""
    models = list(
        dict.fromkeys([options.model, *(options.compare.split(",") if options.compare else ())])
    )
    names = [Path(model).name for model in models]
    runs: dict[str, AnalysedModel] = {}
    for model, name in zip(models, names, strict=True):
        first = next(iter(runs.values()), None)
        if options.data:
            loaded, images = jax_setup.load_on_images(options, model)
            jax_setup.keep_freed_memory()
            run = AnalysedModel(output, loaded.trained, images, Console(quiet=options.quiet))
        elif first and model == "untrained":
            run = first.untrained()
        elif first and model == "refined":
            cli.require(
                options.split == "batch",
                "--compare=refined: message passing needs a batch; add --split=batch",
            )
            refines, method = first.model.method.hooks.refine, first.config.method.name
            cli.require(refines, f"--compare=refined: method {method} has no test-time refinement")
            run = first.refined()
        else:
            run = trained_run(model, options, overrides)
            if first and options.split == "batch":
                same = list(run.split("train").ids) == list(first.split("train").ids)
                cli.require(
                    same, f"--split=batch: {model} was trained on other images than {options.model}"
                )
                run.batch_rows = first.batch_rows
        runs[name if names.count(name) == 1 else model] = run
    return runs


def trained_run(model: str, options: Namespace, overrides: dict[str, str]) -> AnalysedModel:
    config, directory = run_config(model, options, overrides)
    jax_setup.enable_compilation_cache()
    jax_setup.keep_freed_memory()
    console = Console(quiet=options.quiet)
    experiment, state = trained_runs.restore(config, directory, options.checkpoint, console)
    splits = (*experiment.splits, "batch")
    cli.require(
        options.split in splits,
        f"--split={options.split}: the run has none; give {' or '.join(splits)}",
    )
    for key, count in (("batch", experiment.steps), ("node", config.data.batch_size)):
        value = getattr(options, key)
        cli.require(0 <= value < count, f"--{key}={value}: must be in 0 to {count - 1}")
    trained = experiment.model(state, reading_in_results(config, directory))
    return trained_runs.evaluated(
        experiment, trained, directory, console, batch=options.batch, node=options.node
    )


def run_config(model: str, options: Namespace, overrides: dict[str, str]) -> tuple[Config, Path]:
    """The configuration of the run, with overrides of `MOVABLE` keys, and its work directory."""
    in_bucket = model.startswith(files.BUCKETS)
    cli.require(
        not in_bucket,
        f"--model={model}: analyses are written into the run; copy it to a directory first",
    )
    directory = locate(model)
    cli.require(
        is_run(directory),
        f"--data: missing; {model} has no data of its own, give a folder of class folders",
    )
    workdir.read_config(directory)  # explains a missing or damaged file
    allowed = ", ".join(MOVABLE)
    cli.refuse(
        f"--config.{k}: belongs to the run; only {allowed} can be given"
        for k in overrides
        if k not in MOVABLE
    )
    config = config_files.resolved(
        str(directory / "config.json"), overrides, trust_code=options.trust_code
    )
    cli.require(
        not config.data.path or Path(config.data.path).expanduser().is_dir(),
        f"data.path={config.data.path}: the data of the run are not there; give their directory "
        "with --config.data.path=DIRECTORY",
    )
    return config, directory


def chosen_classes(options: Namespace, run: AnalysedModel) -> tuple[str, ...]:
    """The classes of --classes, at most as many as colours and markers distinguish; none without
    it."""
    if options.classes is None:
        return ()
    split = run.split(options.split)
    present = [split.classes[label] for label in np.unique(split.labels)]
    if options.classes.isdecimal():
        count, most = int(options.classes), min(len(present), drawing.KINDS)
        cli.require(0 < count <= most, f"--classes={count}: must be in 1 to {most}")
        return tuple(
            present[i] for i in np.sort(np.random.default_rng(0).permutation(len(present))[:count])
        )
    names = cli.choices("--classes", options.classes, present)
    cli.require(len(names) <= drawing.KINDS, f"--classes: must be at most {drawing.KINDS} classes")
    return names
