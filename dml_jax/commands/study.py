"""Trains the missing runs of a study and prints a table of results:

    dml-jax study --study=folder_methods [--seeds=0,1,2] [--jobs=2] [--config.KEY=VALUE …]
    dml-jax study --compare configs/a.py [configs/b.py:variant …] --seeds=0,1,2
    dml-jax study --runs runs/a-0 runs/a-1 runs/b-0 [--metric=map@r] [--output=DIRECTORY]

Each trial has a work directory below --root; repeat the command to continue interrupted trials.
Overrides apply to every trial. --list prints a command for each unfinished trial, e.g. for a job
array of Slurm.

--runs trains nothing. It tabulates a study's directory, or any runs with the same test images and
protocol; runs that differ only in the seed share a row.

Writes report.md, report.tex, report.csv (one line per run) and, for a grid of two options, a heat
map (grid.png), to the directory of the study or to --output.
"""

from argparse import Namespace
from pathlib import Path

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.errors import refuse, require

VALID_WITH = {  # options that --study, --compare and --runs do not share
    **dict.fromkeys(("root", "seeds", "jobs", "list", "protocol"), ("study", "compare")),
    **dict.fromkeys(("metric", "output"), ("runs",)),
}


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    what = flags.add_mutually_exclusive_group(required=True)
    for name, count, metavar, text in (
        ("study", None, "FILE[:VARIANT]", "study file, e.g. configs/studies/omniglot_methods.py"),
        ("compare", "+", "CONFIG", "configurations to compare, instead of a study"),
        ("runs", "+", "DIRECTORY", "the directory of a study, or work directories of runs"),
    ):
        what.add_argument(f"--{name}", nargs=count, metavar=metavar, help=text)
    for name, metavar, text in (
        ("root", "DIRECTORY", "directory of the study; default: runs/studies/<name of the study>"),
        ("output", "DIRECTORY", "with --runs: where to write; default: the study's directory"),
        ("metric", "METRIC", "with --runs: metric to compare by; default: the study's or recall@1"),
    ):
        flags.add_argument(f"--{name}", metavar=metavar, help=text)
    seeds = cli.numbers(int, "whole numbers, e.g. 0,1,2")
    flags.add_argument("--seeds", type=seeds, help="e.g. 0,1,2; default: the seeds of the study")
    text = "number of concurrent trials, which share cores and devices"
    flags.add_argument("--jobs", type=int, default=1, help=text)
    text, kinds = "paper: select models on test classes (default: clean)", ("clean", "paper")
    flags.add_argument("--protocol", choices=kinds, default="clean", help=text)
    flags.add_argument("--list", action="store_true", help="print the commands without training")
    text = 'columns of tables, e.g. "R@1,MAP@R"; default: all'
    flags.add_argument("--columns", metavar="HEADING,…", default="", help=text)
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, trains missing trials, and prints and writes the table."""
    flags = parser()
    options, overrides = flags.read(arguments)
    for name, kinds in VALID_WITH.items():
        valid = any(getattr(options, kind) for kind in kinds)
        unused = valid or getattr(options, name) == flags.get_default(name)
        require(unused, f"--{name} is only valid with --{' or --'.join(kinds)}")
    options.root = files.expand_path("--root", options.root) if options.root else None
    options.output = files.directory("--output", options.output) if options.output else None
    options.columns = options.columns.split(",") if options.columns else ()
    if options.runs:
        refuse(f"--config.{key}: --runs has no configuration; remove it" for key in overrides)
        from dml_jax.lab import studies

        names = ("metric", "output", "columns")
        studies.compare_runs(options.runs, **{name: getattr(options, name) for name in names})
    else:
        run_study(options, overrides)


def run_study(options: Namespace, overrides: dict[str, str]) -> None:
    from dml_jax.lab import plan, studies

    name, study = (
        plan.load_study(options.study) if options.study else plan.comparison(options.compare)
    )
    settings = plan.Settings(
        options.root or Path("runs/studies") / name,
        tuple(dict.fromkeys(options.seeds or study.seeds)),
        overrides,
        options.protocol == "paper",
    )
    display = {"only_list": options.list, "columns": options.columns}
    studies.run(name, study, settings, jobs=options.jobs, **display)
