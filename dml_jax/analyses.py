"""Analyses of runs, or of models on other images: figures, numbers and a report."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dml_jax import drawing, files
from dml_jax import run as trained_runs
from dml_jax.analysis import findings, html, run_report
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import DIRECTORY, STANDARD_DIRECTORY
from dml_jax.analysis.run_report import ANALYSES, MAPS, RUN_ONLY
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.data import formats
from dml_jax.errors import choices, counted, printable, refuse, require
from dml_jax.identity import Versions
from dml_jax.inference import graphs
from dml_jax.inference.embedding_model import is_run, locate
from dml_jax.train.model import reading_in_results
from dml_jax.train.records import workdir

# Keys of a run's configuration that may be overridden, e.g. because its data has moved.
MOVABLE = ("data.path", "data.threads", "data.workers", "evaluation.batch_size")


class Request(NamedTuple):
    """The options of `dml-jax analyse`.

    With `data`, the model is applied to labelled images, otherwise to the data of its run;
    `overrides` may change MOVABLE keys of the run's configuration.
    """

    model: str
    compare: str | None = None
    data: str | None = None
    output: str | None = None
    what: str | None = None
    split: str = "test"
    classes: str | None = None
    checkpoint: str = "reported"
    trust_code: bool = False
    quiet: bool = False
    overrides: Mapping[str, str] = MappingProxyType({})

    @property
    def apart(self) -> bool:
        """Whether figures and report are written to `output` instead of the run."""
        return bool(self.data or self.compare or self.output)


def analyse(request: Request) -> None:
    """Writes figures, their numbers and the report."""
    what, split = request.what, request.split
    selected = ANALYSES if what is None else choices("--what", what, ANALYSES)
    reasons = {name: why_unsuitable(name, request) for name in selected}
    if what is not None:
        refuse(f"--what={name}: {reason}" for name, reason in reasons.items() if reason)
    usable_path = files.directory if request.apart else files.expand_path
    output = usable_path("--output", request.output or "analysis")
    not_a_run = not (request.apart and (output / "config.json").exists())
    require(not_a_run, f"--output={output}: contains a run; give another directory")
    runs = open_models(request, output)
    run = next(iter(runs.values()))
    for each in runs.values():
        each.classes = chosen_classes(request, each)
    names = [name for name, reason in reasons.items() if not reason]
    directory, to = (output, STANDARD_DIRECTORY) if request.apart else (run.directory, DIRECTORY)
    if request.apart:
        output.mkdir(parents=True, exist_ok=True)
    with files.locked(directory / to, wait=False):  # the report includes existing analyses
        for name in ANALYSES if request.apart else ():  # they may be of another model or data
            (output / to / f"{name}.json").unlink(missing_ok=True)
        with workdir.updated(directory, f"{to}/"):
            for name in names:
                run.console.print(f"analysing: {name}")
                (title, compute), suffix = ANALYSES[name], ""
                if name not in RUN_ONLY and split != "test" and not request.apart:
                    # Keeps the findings about the test split.
                    title, suffix = f"{title}: {split} images", f"-{split}"
                by_model = {model: compute(each, split) for model, each in runs.items()}
                findings.write_analysis(
                    directory, name, title, run.step, by_model, suffix=suffix, to=to
                )
        if request.apart:
            write_separate_report(request, runs, output)
            run.console.print(f"report: {output / 'report.html'}")
            return
        run.console.print(f"figures and numbers: {directory / DIRECTORY}")
        if results := workdir.read_results(directory):
            with workdir.updated(directory, "report.html"):
                run_report.write_page(directory, run.config, results)
            run.console.print(f"report: {directory / 'report.html'}")
        else:
            message = "the run is unfinished, so there is no report yet"
            run.console.print(f"{message}; its report will include the analyses")


def write_separate_report(
    request: Request, runs: Mapping[str, AnalysedModel], output: Path
) -> None:
    """Writes report.html with the findings in `output`."""
    run = next(iter(runs.values()))
    images = run.split(request.split)
    models = f"{request.model}, {request.compare}" if request.compare else request.model
    classes = counted(len(np.unique(images.labels)), "class")
    where, title = f"of {run.config.data.name} ({request.split})", " and ".join(runs)
    if request.data:
        where, title = f"in {request.data}", Path(request.data).name or request.data
    lead = printable(f"{models} on {counted(len(images.labels), 'image')} of {classes} {where}")
    sections = findings.read_sections(output, tuple(ANALYSES))
    html.write_report(output / "report.html", printable(title), lead, sections)


def why_unsuitable(name: str, request: Request) -> str:
    """The reason why an analysis is unsuitable for the request; empty if it is suitable."""
    if request.data and name in RUN_ONLY:
        return "needs a trained run with its own data; remove --data"
    if request.split != "test" and name in RUN_ONLY:
        return "does not depend on the split; remove --split"
    if request.classes and name not in MAPS:
        return "cannot select classes; remove --classes"
    return ""


def open_models(request: Request, output: Path) -> dict[str, AnalysedModel]:
    """The models by distinct names, `request.model` first."""
    compared = request.compare.split(",") if request.compare else ()
    models = list(dict.fromkeys([request.model, *compared]))
    names = [Path(model).name for model in models]
    runs: dict[str, AnalysedModel] = {}
    for model, name in zip(models, names, strict=True):
        first = next(iter(runs.values()), None)
        if request.data:
            run = on_labelled_images(model, request, output)
        elif first and model == "untrained":
            run = first.untrained()
        else:
            run = trained_run(model, request)
        runs[name if names.count(name) == 1 else model] = run
    return runs


def on_labelled_images(model: str, request: Request, output: Path) -> AnalysedModel:
    """The model with the labelled images of `request.data`."""
    path = files.expand_path("--data", request.data or "")
    options: Any = {"trust_code": request.trust_code, "versions": Versions()}
    loaded: Any = graphs.load(model, request.checkpoint, None, **options)
    images = formats.load_labelled(path, loaded.config.data)
    return AnalysedModel(output, loaded.trained, images, Console(quiet=request.quiet))


def trained_run(model: str, request: Request) -> AnalysedModel:
    """The model of a run with its data."""
    config, directory = run_config(model, request.overrides, trust_code=request.trust_code)
    console = Console(quiet=request.quiet)
    experiment, state = trained_runs.restore(config, directory, request.checkpoint, console)
    splits, available = experiment.splits, " or ".join(experiment.splits)
    problem = f"--split={request.split}: the run has no such split; give {available}"
    require(request.split in splits, problem)
    trained = experiment.model(state, reading_in_results(config, directory))
    return trained_runs.evaluated(experiment, trained, directory, console)


def run_config(
    model: str, overrides: Mapping[str, str], *, trust_code: bool = False
) -> tuple[Config, Path]:
    """The configuration of the run, with overridden `MOVABLE` keys, and its work directory."""
    message = "analyses are written to the run; copy it to a local directory first"
    require(not model.startswith(files.BUCKETS), f"--model={model}: {message}")
    directory = locate(model)
    message = f"{model} has no data of its own; give a folder of class folders"
    require(is_run(directory), f"--data: missing; {message}")
    workdir.read_config(directory)  # reports a missing or damaged file
    not_movable = (key for key in overrides if key not in MOVABLE)
    message = f"is fixed by the run; only {', '.join(MOVABLE)} can be changed"
    refuse(f"--config.{key}: {message}" for key in not_movable)
    config = config_files.resolved(str(directory / "config.json"), overrides, trust_code=trust_code)
    path = config.data.path
    message = "the run's data is missing; give its directory with --config.data.path"
    present = not path or Path(path).expanduser().is_dir()
    require(present, f"data.path={path}: {message}=DIRECTORY")
    return config, directory


def chosen_classes(request: Request, run: AnalysedModel) -> tuple[str, ...]:
    """The classes of --classes, at most as many as there are markers; empty without the option."""
    if request.classes is None:
        return ()
    split = run.split(request.split)
    present = [split.classes[label] for label in np.unique(split.labels)]
    if request.classes.isdecimal():
        count, most = int(request.classes), min(len(present), drawing.KINDS)
        require(0 < count <= most, f"--classes={count}: must be in 1 to {most}")
        drawn = np.random.default_rng(0).permutation(len(present))[:count]
        return tuple(present[i] for i in np.sort(drawn))
    names = choices("--classes", request.classes, present)
    require(len(names) <= drawing.KINDS, f"--classes: must be at most {drawing.KINDS} classes")
    return names
