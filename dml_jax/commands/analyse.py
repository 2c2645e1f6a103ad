"""Analyses a model: figures with the numbers behind them, gathered in a report:

    dml-jax analyse --model=runs/digits_hist [--what=tsne,classes] [--split=test]
    dml-jax analyse --model=lite0 --data=photos/ [--output=analysis]
    dml-jax analyse --model=runs/A --compare=runs/B,untrained [--what=spectra,tsne] [--output=analysis]

The first analyses a run on its own data, the second any model on labelled images: a folder with one subfolder per
class, or the test split of a prepared data set. Without --what, everything that applies to the run. For curves over the
training, train with --config.train.keep_every=N. Writes analysis/*.png and *.csv into the work directory and
renews report.html, which has the first three from the start. With --data, --compare or --output, figures and
report.html are written to --output (default: analysis). --compare shows several models side by side: runs (with --data,
any models), the first run before its training ("untrained"), and after message passing ("refined", of a batch).

  retrieval     retrieved images
  classes       Recall@1 by class, most confused pairs
  components    map on the first principal components (*)
  overfitting   Recall@1 of training classes beside test classes over the kept models (*); not with --data
  spectra       singular values, density, effective rank; for DiVA also by task (*)
  tsne          map with thumbnails (*)
  attention     MPN: divergence from uniform, weight on the own class, one node's weights over the kept models
  influence     MPN: images on whose pixels a prediction depends
  heat_maps     CRT: where prototypes respond

(*) with --compare
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.errors import counted, printable

if TYPE_CHECKING:
    from dml_jax.analysis.findings import Subject


SPLITS = ("test", "train", "validation")


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    cli.add_model(flags)
    flags.add_argument("--compare", metavar="MODEL,MODEL", help="further models, untrained or refined")
    flags.add_argument("--data", metavar="DIRECTORY", help="labelled images: class folders or a prepared data set")
    flags.add_argument("--output", metavar="DIRECTORY", help="write here instead of into the run (default: analysis)")
    flags.add_argument("--what", metavar="NAME,NAME", help="analyses (default: all that apply)")
    flags.add_argument(
        "--split", choices=(*SPLITS, "batch"), default="test", help="default: test; batch is one training batch"
    )
    flags.add_argument("--batch", type=int, default=0, help="number of the training batch, default 0")
    flags.add_argument("--node", type=int, default=0, help="of attention: image of the batch, by class, default 0")
    flags.add_argument("--classes", metavar="NAME,NAME|N", help="of maps: shown classes, by name or N drawn ones")
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, makes the analyses and renews the report."""
    options, overrides = parser().read(arguments)
    from dml_jax.analysis import findings, run_report
    from dml_jax.commands.analyse_models import applicable, chosen_classes, trained_run
    from dml_jax.train.records import workdir

    subjects = chosen_subjects(options)
    if options.data or options.compare or options.output:
        analyse_apart(options, overrides, subjects)
        return
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
    if results := workdir.read_results(directory):
        run_report.write_page(directory, run.config, results, run.metrics())
        console.print(f"report: {directory / 'report.html'}")
    else:
        console.print("the run is not finished, so there is no report yet; finishing it will include the analyses")


def chosen_subjects(options: Namespace) -> dict[str, Subject]:
    """The subjects in --what, or all that fit the other options."""
    from dml_jax.analysis.run_report import SUBJECTS

    named = SUBJECTS if options.what is None else cli.choices("--what", options.what, SUBJECTS)
    reasons = {name: reason_against(SUBJECTS[name], options) for name in named}
    if options.what is not None:
        cli.refuse(f"--what={name}: {reason}" for name, reason in reasons.items() if reason)
    return {name: SUBJECTS[name] for name, reason in reasons.items() if not reason}


def reason_against(subject: Subject, options: Namespace) -> str:
    """Why a subject does not fit the other options; empty if it does."""
    from dml_jax.analysis.run_report import SUBJECTS

    compared = ", ".join(name for name, each in SUBJECTS.items() if each.compared)
    reasons = {
        "needs a trained run on its own data, not --data": options.data and subject.of_run,
        f"not with --compare, only {compared}": options.compare and not subject.compared,
        "not with --split=batch, which is too few images": options.split == "batch" and not subject.compared,
        "is not made by split; leave --split out": options.split != "test" and not subject.by_split,
        "shows no chosen classes; leave --classes out": options.classes and not subject.is_map,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def analyse_apart(options: Namespace, overrides: dict[str, str], subjects: dict[str, Subject]) -> None:
    """Analyses a model on labelled images, or compares models, and writes the figures and a report."""
    import numpy as np

    from dml_jax.analysis import findings, run_report
    from dml_jax.analysis.run_report import SUBJECTS
    from dml_jax.commands.analyse_models import applicable, chosen_classes, opened

    output = files.expand_path("--output", options.output or "analysis")
    unusable = (output.exists() and not output.is_dir()) or files.below_a_file(output)
    cli.require(
        not (unusable or (output / "config.json").exists()),
        f"--output={output}: is a file or holds a run; give another directory",
    )
    runs = opened(options, overrides, output)
    run = next(iter(runs.values()))
    for each in runs.values():
        each.classes = chosen_classes(options, each)
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
