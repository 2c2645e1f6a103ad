"""What `dml-jax study` does: trains missing runs of studies, searches and claims; writes tables."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from dml_jax import buckets, files
from dml_jax.analysis import text_tables
from dml_jax.console import Console
from dml_jax.errors import UserError, refuse, require
from dml_jax.lab import claims, outcomes, plan, runner, search, tables, verdicts
from dml_jax.lab.claims import Target
from dml_jax.lab.definition import Search, Study
from dml_jax.lab.plan import Settings, Trial


def run(
    name: str,
    study: Study,
    settings: Settings,
    *,
    jobs: int = 1,
    only_list: bool = False,
    columns: Sequence[str] = (),
    trials: int | None = None,
    storage: str | None = None,
) -> None:
    """Trains the missing trials of a study or search and publishes its table.

    Raises UserError if a trial failed.

    Args:
      jobs: number of trials at a time.
      only_list: prints the commands of the trials instead; not for a search.
      columns: headings of the table, by default all; not for a search.
      trials: of a search, instead of the study's number.
      storage: URL of optuna's storage of a search, by default a file below the root.
    """
    if study.search is None:
        given = (key for key, v in (("trials", trials), ("storage", storage)) if v is not None)
        refuse(f"--{key}: {name} is not a search; leave it out" for key in given)
        _run_study(name, study, settings, jobs, only_list, columns)
        return
    remedy = "on several machines, give the same command with a --root each and one --storage"
    require(not only_list, f"--list: the trials of a search depend on each other; {remedy}")
    require(not columns, "--columns: a search has one table with all columns; leave it out")
    wanted = study.search if trials is None else replace(study.search, trials=trials)
    _run_search(name, study, wanted, settings, jobs, storage or "")


def _run_study(
    name: str,
    study: Study,
    settings: Settings,
    jobs: int,
    only_list: bool,
    columns: Sequence[str],
) -> None:
    root = settings.root
    runner.slots(jobs)  # raises for an impossible number before anything is written
    trials = plan.trials(study, settings)
    facts = plan.begin(name, study, settings, trials)
    if only_list:
        runner.print_commands(root, trials)
        return
    with files.locked(root / "trials", wait=False):
        runner.run_all(root, trials, jobs)
    tables.publish(tables.of_study(root, facts), root, Console().rich, columns)
    done = outcomes.finished(trials)
    if failed := [trial.name for trial in trials if trial.name not in done]:
        count = f"{len(failed)} of {len(trials)} trials failed, e.g. {failed[0]}"
        logs = f"see the logs in {root / 'trials'}"
        raise UserError(f"{count}; {logs}; the same command runs them again")


def _run_search(
    name: str, study: Study, wanted: Search, settings: Settings, jobs: int, storage: str
) -> None:
    given = ",".join(map(str, settings.seeds))
    message = "a search trains every trial with one seed; give one"
    require(len(settings.seeds) == 1, f"--seeds={given}: {message}")
    runner.slots(jobs)
    search.make_trial(wanted, settings, "trial-0000", search.example(wanted))
    if storage:  # before anything is written
        search.open_storage(storage, name)
    facts, storage = plan.begin(name, study, settings), storage or storage_in(settings.root)
    with files.locked(settings.root / "trials", wait=False):
        search.run(name, wanted, settings, study.metric, jobs, storage)
    search.publish(facts, storage, settings.root, Console().rich)


def storage_in(root: Path) -> str:
    """The URL of the storage in the directory of a search."""
    return f"sqlite:///{root.resolve() / 'search.db'}"


def run_claims(
    papers: Sequence[str],
    target: Target,
    settings: Settings,
    *,
    names: Collection[str] = (),
    output: Path,
    jobs: int = 1,
    only_list: bool = False,
) -> None:
    """Makes choices and trains the missing runs for papers' claims, all or those named; prints and
    writes verdicts.

    The measurements are added to OUTPUT/TARGET.csv, and used in a verdict once all of its claim are
    there; the choices are added to OUTPUT/choices/TARGET.csv. `only_list` prints the claims
    instead.
    """
    stated, placebos = claims.selected(papers, names), claims.imitated(papers, target)
    every = list(itertools.chain(*stated.values()))
    root = settings.root
    settings = replace(settings, defaults={**target.overrides, "evaluation.diagnose": True})
    tried = claims.choices(every, target, settings, placebos)
    trials = claims.distinct(claims.planned(every, target, settings).values())
    if only_list:
        print(*claims.listed(stated, target), sep="\n")
    missing = sum(not (trial.directory / "results.json").exists() for trial in trials)
    print(f"{len(trials)} trials, {missing} not finished")
    if only_list:
        return
    (root / "trials").mkdir(parents=True, exist_ok=True)
    file = output / f"{target.name}.csv"
    with files.locked(root / "trials", wait=False):
        train(root, claims.distinct(choice.trial for choice in tried), jobs)
        best = claims.chosen(tried, placebos)
        owners = claims.planned(every, target, settings, best)
        plan.check_same(claims.distinct(owners.values()))
        before = claims.read(file)
        try:
            train(root, claims.distinct(owners.values()), jobs)
        finally:  # after a signal, too, what is finished is written
            looked = claims.complete(every, target, owners)
            measured = claims.measurements(owners, looked, claims.next_look(before))
            lines = claims.merged(before, measured)
            output.mkdir(parents=True, exist_ok=True)
            tables.write_csv(file, lines, claims.columns(lines))
            if tried:
                (output / "choices").mkdir(exist_ok=True)
                stated_choices = output / "choices" / file.name
                known = claims.read(stated_choices)
                tables.write_csv(stated_choices, claims.choice_lines(tried, best, known))
            found = [verdicts.table(paper, lines, target, shown) for paper, shown in stated.items()]
            for table in found:
                text_tables.print_table(table, Console().rich)
            text_tables.write_report(output, found, "")


def train(root: Path, trials: Sequence[Trial], jobs: int) -> None:
    """Trains the missing trials, those of heads on stored maps in one process.

    Raises CheckpointError if a directory holds a run of another configuration.
    """
    plan.check_same(trials)
    heads = claims.on_maps(trials)
    if any(not (trial.directory / "results.json").exists() for trial in heads):
        runner.run_heads(root, heads)
    known = {trial.name for trial in heads}
    runner.run_all(root, [trial for trial in trials if trial.name not in known], jobs)


def compare_runs(
    runs: Sequence[str],
    *,
    metric: str | None = None,
    output: Path | None = None,
    columns: Sequence[str] = (),
    storage: str | None = None,
) -> None:
    """Publishes the table of the study or search in a directory, or of any finished runs, which may
    be in buckets.

    It is written to `output`, by default into the directory of the study or search.
    """
    directories = [
        buckets.read_copy("--runs", run) if files.is_url(run) else files.expand_path("--runs", run)
        for run in runs
    ]
    missing = (directory for directory in directories if not directory.is_dir())
    refuse(f"--runs {directory}: there is no such directory" for directory in missing)
    first = directories[0]
    facts = plan.read_facts(first) if len(directories) == 1 else None
    if facts and facts.get("search"):
        given = (name for name, value in (("metric", metric), ("columns", columns)) if value)
        refuse(f"--{name}: {first} holds a search; leave it out" for name in given)
        search.publish(facts, storage or storage_in(first), output or first, Console().rich)
        return
    require(not storage, f"--storage: {first} holds no search; leave it out")
    found = tables.of_study(first, facts) if facts else tables.of_runs(directories, "recall@1")
    found = found._replace(metric=metric or found.metric)
    output = output or (first if facts else None)
    tables.publish(found, output, Console().rich, columns)
