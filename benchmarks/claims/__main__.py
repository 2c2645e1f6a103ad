"""Tests what papers claim: trains the missing rows of their studies; prints and writes verdicts.

    python -m benchmarks.claims hist --on=omniglot --list
    python -m benchmarks.claims all --on=cars:lite0 --splits=0,1,2,3,4 --config.data.path=data/cars

Measurements are added to OUTPUT/DATA-RECIPE.csv, and choices to OUTPUT/choices/DATA-RECIPE.csv.
Verdicts are made once, when all runs of the plan are there; a follow-up with other splits or seeds
is a new plan with another OUTPUT.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.claims import ledger, verdicts
from benchmarks.claims.ledger import Claim, Settings, Target
from dml_jax import files
from dml_jax.analysis import text_tables
from dml_jax.commands import cli, jax_setup
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.lab import plan, runner
from dml_jax.lab.plan import Trial


def main(arguments: Sequence[str]) -> None:
    flags, seeds = cli.Parser(__doc__), cli.numbers(int, "whole numbers, e.g. 0,1,2")
    flags.add_argument("paper", metavar="PAPER|all|FILE", help="whose claims; FILE has your own")
    text = "cub, omniglot, cars:lite0, photos:lite0_stages, …"
    flags.add_argument("--on", metavar="DATA[:RECIPE]", required=True, help=text)
    flags.add_argument("--only", metavar="NAME,…", help="these claims; default: all")
    flags.add_argument("--seeds", type=seeds, help="default: 0 to 7, or 0 to 3 of several splits")
    text = "draws of the training classes; 0 is the data set's own"
    flags.add_argument("--splits", type=seeds, default=(0,), help=text)
    flags.add_argument("--root", type=Path, help="of all runs; default: runs/claims/DATA-RECIPE")
    flags.add_argument("--output", type=Path, help="where to write; default: the root")
    flags.add_argument("--jobs", type=int, default=1, help="runs at a time")
    flags.add_argument("--list", action="store_true", help="print the claims, train nothing")
    options, overrides = flags.read(arguments)
    papers = ledger.papers() if options.paper == "all" else (options.paper,)
    target = Target.of(options.on)
    stated = ledger.selected(papers, options.only.split(",") if options.only else ())
    if options.list:
        print(*ledger.listed(stated, target), sep="\n")
        return
    root, splits = options.root or Path("runs/claims") / target.name, options.splits
    numbers = options.seeds or range(verdicts.SEEDS_PER_SPLIT if splits[1:] else verdicts.SEEDS)
    settings = Settings(root, tuple(numbers), tuple(splits), overrides)
    run(stated, target, settings, options.output or root, options.jobs)


def run(
    stated: Mapping[str, Sequence[Claim]],
    target: Target,
    settings: Settings,
    output: Path,
    jobs: int,
) -> None:
    """Makes choices, trains missing runs, and writes measurements and verdicts.

    ConfigError if there are measurements of another plan, and if a run failed.
    """
    every, placebos = list(itertools.chain(*stated.values())), ledger.imitated(stated, target)
    root, file = settings.root, output / f"{target.name}.csv"
    tried = ledger.choices(every, target, settings, placebos)
    ledger.planned(every, target, settings)  # raises before anything is trained
    (root / "trials").mkdir(parents=True, exist_ok=True)
    with files.locked(root / "trials", wait=False):
        train(root, ledger.distinct(choice.trial for choice in tried), jobs)
        best = ledger.chosen(tried, placebos)
        owners = ledger.planned(every, target, settings, best)
        before = ledger.read(file)
        ledger.merged(before, ledger.measurements(owners))  # raises before anything is trained
        try:
            train(root, ledger.distinct(owners.values()), jobs)
        finally:  # after a signal, too, what is finished is written
            lines = ledger.merged(before, ledger.measurements(owners))
            ledger.write(file, lines, ledger.columns(lines))
            if tried:
                choices = output / "choices" / file.name
                made = ledger.choice_lines(tried, best, ledger.read(choices))
                ledger.write(choices, made, ledger.CHOICE)
    if missing := ledger.unfinished(owners):
        error = f"{missing} of {len(owners)} runs are missing; repeat the command"
        raise ConfigError(error)
    found = [verdicts.table(paper, lines, target, shown) for paper, shown in stated.items()]
    for table in found:
        text_tables.print_table(table, Console().rich)
    text_tables.write_report(output, found, "")


def train(root: Path, trials: Sequence[Trial], jobs: int) -> None:
    """Trains the missing trials, heads on stored maps in this process.

    Raises CheckpointError if a directory holds a run of another configuration.
    """
    plan.check_same(trials)
    on_maps = ledger.on_maps(trials)
    if any(not (trial.directory / "results.json").exists() for trial in on_maps):
        from benchmarks.claims import heads  # imports JAX

        heads.train(on_maps)
    known = {trial.name for trial in on_maps}
    runner.run_all(root, [trial for trial in trials if trial.name not in known], jobs)


if __name__ == "__main__":
    jax_setup.enable_compilation_cache()
    sys.exit(cli.exit_code(lambda: main(sys.argv[1:])))
