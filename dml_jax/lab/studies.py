"""The command `dml-jax study`: trains missing runs and writes tables."""

from collections.abc import Sequence
from pathlib import Path

from dml_jax import buckets, files
from dml_jax.console import Console
from dml_jax.errors import UserError, refuse
from dml_jax.lab import outcomes, plan, runner, tables
from dml_jax.lab.definition import Study
from dml_jax.lab.plan import Settings


def run(
    name: str,
    study: Study,
    settings: Settings,
    *,
    jobs: int = 1,
    only_list: bool = False,
    columns: Sequence[str] = (),
) -> None:
    """Trains the missing trials of a study and publishes its table; UserError if a trial failed.

    Args:
      jobs: number of concurrent trials.
      only_list: prints the commands of the trials instead.
      columns: headings to show; by default all.
    """
    root = settings.root
    runner.slots(jobs)  # raises for an invalid number before anything is written
    trials = plan.trials(study, settings)
    facts = plan.create_study(name, study, settings, trials)
    if only_list:
        runner.print_commands(root, trials)
        return
    with files.locked(root / "trials", wait=False):
        runner.run_all(root, trials, jobs)
    tables.publish(tables.summarise_study(root, facts), root, Console().rich, columns)
    done = outcomes.finished(trials)
    if failed := [trial.name for trial in trials if trial.name not in done]:
        count = f"{len(failed)} of {len(trials)} trials failed, e.g. {failed[0]}"
        logs = f"see the logs in {root / 'trials'}"
        raise UserError(f"{count}; {logs}; run the same command to repeat them")


def compare_runs(
    runs: Sequence[str],
    *,
    metric: str | None = None,
    output: Path | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Publishes the table of a study's directory, or of any finished runs, which may be in buckets.

    Writes to `output`; by default, to the directory of a study.
    """
    directories = [
        buckets.read_copy("--runs", run) if files.is_url(run) else files.expand_path("--runs", run)
        for run in runs
    ]
    missing = (directory for directory in directories if not directory.is_dir())
    refuse(f"--runs {directory}: no such directory" for directory in missing)
    first = directories[0]
    facts = plan.read_facts(first) if len(directories) == 1 else None
    summary = (
        tables.summarise_study(first, facts)
        if facts
        else tables.summarise_runs(directories, "recall@1")
    )
    summary = summary._replace(metric=metric or summary.metric)
    output = output or (first if facts else None)
    tables.publish(summary, output, Console().rich, columns)
