"""Trains the missing runs of a study, and prints its table:

    dml-jax study --study=hist:layers-cars [--seeds=0,1,2] [--jobs=2] [--config.KEY=VALUE …]
    dml-jax study --compare configs/a.py [configs/b.py:variant …] --seeds=0,1,2
    dml-jax study --runs runs/a-0 runs/a-1 runs/b-0 [--metric=map@r] [--output=DIRECTORY]

Each trial is a work directory below --root; the same command continues interrupted trials.
Overrides apply to every trial. --list prints a command for each trial that is not finished, for a
job array of Slurm or any other scheduler.

--runs trains nothing: it makes the table of the study in a directory, or of any runs with the same
test images and protocol, with a row for runs that differ only in the seed.

Writes report.md, report.tex, report.csv (one line per run) and, for a grid of two options, a heat
map (grid.png): into the directory of the study, or into --output.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax.commands import cli
from dml_jax.errors import UserError, suggest

if TYPE_CHECKING:
    from dml_jax.lab.definition import Study
    from dml_jax.lab.plan import Settings


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    what = flags.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--study",
        metavar="FILE[:VARIANT]",
        help="study file, e.g. configs/studies/omniglot_methods.py",
    )
    what.add_argument(
        "--compare", nargs="+", metavar="CONFIG", help="configurations instead of a study"
    )
    what.add_argument(
        "--claims", metavar="PAPER|all", help="test what a paper (its folder in configs/) claims"
    )
    what.add_argument(
        "--runs", nargs="+", metavar="DIRECTORY", help="of a study, or work directories of runs"
    )
    flags.add_argument(
        "--on", metavar="DATA", help="of --claims: photos, photos_stages, omniglot, cub, …"
    )
    flags.add_argument(
        "--root",
        metavar="DIRECTORY",
        help="of the study; default: runs/studies/<name of the study>",
    )
    seeds = cli.numbers(int, "whole numbers, e.g. 0,1,2")
    flags.add_argument("--seeds", type=seeds, help="e.g. 0,1,2; default: the study's")
    flags.add_argument(
        "--jobs", type=int, default=1, help="trials at a time; the cores and devices are divided"
    )
    flags.add_argument(
        "--protocol",
        choices=("clean", "paper"),
        default="clean",
        help="paper: select on test classes",
    )
    flags.add_argument(
        "--list", action="store_true", help="print the commands of the trials, train nothing"
    )
    flags.add_argument(
        "--trials", type=int, help="number of trials of a search; default: the study's"
    )
    flags.add_argument(
        "--storage",
        metavar="URL",
        help="optuna's, of a search; default: sqlite:///<root>/search.db",
    )
    flags.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="of --runs: where to write; default: directory of a study",
    )
    flags.add_argument(
        "--metric", help="of --runs: compares rows; default: the study's, or recall@1"
    )
    text = 'of the tables, by heading, e.g. "R@1,MAP@R"; default: all'
    flags.add_argument(
        "--columns", metavar="HEADING,…", type=lambda names: names.split(","), default=(), help=text
    )
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and the study, trains missing trials, prints and writes the table.

    Raises UserError if a trial failed, and SystemExit after a signal.
    """
    options, overrides = parser().read(arguments)
    if options.claims:
        test_claims(options, overrides)
        return
    if options.runs:
        cli.refuse(f"--config.{key}: --runs has no configuration; remove it" for key in overrides)
        make_table(options)
        return
    from dml_jax import files
    from dml_jax.console import Console
    from dml_jax.lab import outcomes, plan, runner, tables

    name, study = plan.load(options.study) if options.study else plan.comparison(options.compare)
    root = (
        files.expand_path("--root", options.root) if options.root else Path("runs/studies") / name
    )
    seeds = tuple(dict.fromkeys(options.seeds or study.seeds))
    settings = plan.Settings(root, seeds, overrides, options.protocol == "paper")
    runner.slots(options.jobs)
    if study.search is not None:
        run_search(name, study, settings, options)
        return
    for option in ("trials", "storage"):
        cli.require(
            getattr(options, option) is None, f"--{option}: {name} is not a search; leave it out"
        )
    trials = plan.trials(study, settings)
    facts = plan.begin(name, study, settings, trials)
    if options.list:
        runner.print_commands(root, trials)
        return
    with runner.locked(root):
        runner.run_all(root, trials, options.jobs)
    tables.publish(tables.of_study(root, facts), root, Console().rich, options.columns)
    done = outcomes.finished(trials)
    if failed := [trial for trial in trials if trial.name not in done]:
        raise UserError(
            f"{len(failed)} of {len(trials)} trials failed, e.g. {failed[0].name}; see the logs in "
            f"{root / 'trials'}; the same command runs them again"
        )


def test_claims(options: Namespace, overrides: dict[str, str]) -> None:
    """Trains the missing runs for the claims of papers on a data set; prints and writes the
    verdicts.

    The measurements are in DATA.csv in --output, by default the directory of the trials; those in
    the file are kept.
    """
    from dml_jax import files
    from dml_jax.console import Console
    from dml_jax.lab import claims, plan, runner, tables

    known = claims.papers()
    papers = known if options.claims == "all" else (options.claims,)
    cli.require(
        {*papers} <= {*known},
        f"--claims={options.claims}: {suggest(options.claims, [*known, 'all'])}",
    )
    data = options.on
    cli.require(
        data, "--on: missing; give the data set on which the claims are tested, e.g. --on=omniglot"
    )
    root = files.expand_path("--root", options.root) if options.root else Path("runs/claims") / data
    settings = plan.Settings(
        root, tuple(dict.fromkeys(options.seeds or range(claims.SEEDS))), overrides
    )
    owners = claims.planned(papers, data, settings)
    trials = claims.distinct(owners)
    output = files.expand_path("--output", options.output) if options.output else root
    if options.list:
        for line in claims.listed(papers, data):
            print(line)
    missing = sum(not (trial.directory / "results.json").exists() for trial in trials)
    print(f"{len(trials)} trials, {missing} not finished")
    if options.list:
        return
    (root / "trials").mkdir(parents=True, exist_ok=True)
    heads = claims.on_maps(trials)
    with runner.locked(root):
        try:
            if heads:
                runner.run_heads(root, heads)
            runner.run_all(root, [trial for trial in trials if trial not in heads], options.jobs)
        finally:  # after a signal, too, of what is finished
            file = output / f"{data}.csv"
            lines = claims.merged(claims.read(file), claims.measurements(owners))
            output.mkdir(parents=True, exist_ok=True)
            tables.write_csv(file, lines, claims.COLUMNS)
            found = [claims.table(paper, lines, data) for paper in papers]
            for table in found:
                tables.print_table(table, Console().rich)
            tables.write(output, found, "")


def make_table(options: Namespace) -> None:
    from dml_jax import buckets, files
    from dml_jax.console import Console
    from dml_jax.lab import plan, search, tables

    directories = [
        buckets.read_copy("--runs", name)
        if files.is_url(name)
        else files.expand_path("--runs", name)
        for name in options.runs
    ]
    for directory in directories:
        cli.require(directory.is_dir(), f"--runs {directory}: there is no such directory")
    facts = plan.read_facts(directories[0]) if len(directories) == 1 else None
    output = files.expand_path("--output", options.output) if options.output else None
    no_directory = output is not None and (output.is_file() or files.below_a_file(output))
    cli.require(not no_directory, f"--output={output}: is a file or below one; give a directory")
    if facts and "search" in facts:
        storage = storage_of(directories[0], options.storage)
        search.publish(facts, storage, output or directories[0], Console().rich)
        return
    found = (
        tables.of_study(directories[0], facts) if facts else tables.of_runs(directories, "recall@1")
    )
    if options.metric:
        found = found._replace(metric=options.metric)
    tables.publish(
        found, output or (directories[0] if facts else None), Console().rich, options.columns
    )


def run_search(name: str, study: Study, settings: Settings, options: Namespace) -> None:
    """Runs a search and prints its table."""
    from dml_jax.console import Console
    from dml_jax.lab import plan, runner, search

    assert study.search is not None
    wanted = (
        study.search if options.trials is None else replace(study.search, trials=options.trials)
    )
    root, seeds = settings.root, settings.seeds
    given = ",".join(map(str, seeds))
    cli.require(
        len(seeds) == 1, f"--seeds={given}: a search trains every trial with one seed; give one"
    )
    cli.require(
        not options.list,
        "--list: the trials of a search depend on each other; on several machines, give the same "
        "command with a --root each and one --storage",
    )
    search.make_trial(wanted, settings, "trial-0000", search.example(wanted))
    if options.storage:  # before anything is written
        search.open_storage(options.storage, name)
    facts = plan.begin(name, study, settings)
    storage = storage_of(root, options.storage)
    with runner.locked(root):
        search.run(name, wanted, settings, study.metric, options.jobs, storage)
    search.publish(facts, storage, root, Console().rich)


def storage_of(root: Path, given: str | None) -> str:
    """The URL of the storage of a search."""
    return given or f"sqlite:///{root.resolve() / 'search.db'}"
