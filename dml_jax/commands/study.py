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

from argparse import Namespace
from pathlib import Path
from typing import Any

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.errors import refuse, require

TRAINING = ("study", "compare", "claims")
VALID_WITH = {  # for options that not all of these, and --runs, have
    **dict.fromkeys(("root", "seeds", "jobs", "list"), TRAINING),
    **dict.fromkeys(("on", "claim", "splits"), ("claims",)),
    "protocol": ("study", "compare"),
    "columns": ("study", "compare", "runs"),
    "trials": ("study",),
    "storage": ("study", "runs"),
    "metric": ("runs",),
    "output": ("runs", "claims"),
}


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    what = flags.add_mutually_exclusive_group(required=True)
    for name, count, metavar, text in (
        ("study", None, "FILE[:VARIANT]", "study file, e.g. configs/studies/omniglot_methods.py"),
        ("compare", "+", "CONFIG", "configurations instead of a study"),
        ("claims", None, "PAPER|all|FILE", "test what a paper, or your file, claims"),
        ("runs", "+", "DIRECTORY", "the directory of a study, or work directories of runs"),
    ):
        what.add_argument(f"--{name}", nargs=count, metavar=metavar, help=text)
    for name, metavar, text in (
        ("on", "DATA[:RECIPE]", "with --claims: cub, omniglot, cars:lite0, photos:lite0_stages, …"),
        ("claim", "NAME,…", "with --claims: only these"),
        ("root", "DIRECTORY", "directory of the study; default: runs/studies/<name of the study>"),
        ("storage", "URL", "optuna's storage for a search; default: sqlite:///<root>/search.db"),
        ("output", "DIRECTORY", "with --runs or --claims: where to write; default: the study's"),
        ("metric", "METRIC", "with --runs: compares rows; default: the study's, or recall@1"),
    ):
        flags.add_argument(f"--{name}", metavar=metavar, help=text)
    seeds = cli.numbers(int, "whole numbers, e.g. 0,1,2")
    flags.add_argument("--seeds", type=seeds, help="e.g. 0,1,2; default: the study's")
    text = "with --claims: draws of the training classes, e.g. 0,1,2,3,4; 0 is the data set's own"
    flags.add_argument("--splits", type=seeds, default=(0,), help=text)
    text = "trials at a time, which share the cores and devices"
    flags.add_argument("--jobs", type=int, default=1, help=text)
    text, kinds = "paper: select on test classes", ("clean", "paper")
    flags.add_argument("--protocol", choices=kinds, default="clean", help=text)
    flags.add_argument("--list", action="store_true", help="print the commands, train nothing")
    flags.add_argument("--trials", type=int, help="trials of a search; default: the study's")
    text = 'columns of tables, e.g. "R@1,MAP@R"; default: all'
    flags.add_argument("--columns", metavar="HEADING,…", default="", help=text)
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, trains missing trials, prints and writes the table."""
    flags = parser()
    options, overrides = flags.read(arguments)
    for name, kinds in VALID_WITH.items():
        valid = any(getattr(options, kind) for kind in kinds)
        unused = valid or getattr(options, name) == flags.get_default(name)
        require(unused, f"--{name}: is only valid with --{' or --'.join(kinds)}")
    options.root = files.expand_path("--root", options.root) if options.root else None
    options.output = files.directory("--output", options.output) if options.output else None
    options.columns = options.columns.split(",") if options.columns else ()
    if options.claims:
        run_claims(options, overrides)
    elif options.runs:
        refuse(f"--config.{key}: --runs has no configuration; remove it" for key in overrides)
        from dml_jax.lab import studies

        names = ("metric", "output", "columns", "storage")
        studies.compare_runs(options.runs, **{name: getattr(options, name) for name in names})
    else:
        run_study(options, overrides)


def run_study(options: Namespace, overrides: dict[str, str]) -> None:
    from dml_jax.lab import plan, studies

    name, study = plan.load(options.study) if options.study else plan.comparison(options.compare)
    root, paper = options.root or Path("runs/studies") / name, options.protocol == "paper"
    seeds = tuple(dict.fromkeys(options.seeds or study.seeds))
    settings = plan.Settings(root, seeds, (0,), overrides, paper)
    further: Any = {key: getattr(options, key) for key in ("jobs", "trials", "storage", "columns")}
    studies.run(name, study, settings, only_list=options.list, **further)


def run_claims(options: Namespace, overrides: dict[str, str]) -> None:
    from dml_jax.lab import claims, plan, studies, verdicts

    papers = claims.papers() if options.claims == "all" else (options.claims,)
    names = options.claim.split(",") if options.claim else ()
    remedy = "give the data on which the claims are tested, e.g. --on=cars or --on=photos:lite0"
    require(options.on, f"--on: missing; {remedy}")
    target = claims.Target.of(options.on)
    root = options.root or Path("runs/claims") / target.name
    splits = tuple(dict.fromkeys(options.splits))
    seeds = options.seeds or range(verdicts.SEEDS if len(splits) == 1 else verdicts.SEEDS_PER_SPLIT)
    settings = plan.Settings(root, tuple(dict.fromkeys(seeds)), splits, overrides)
    further: Any = {"names": names, "output": options.output or root, "jobs": options.jobs}
    studies.run_claims(papers, target, settings, only_list=options.list, **further)
