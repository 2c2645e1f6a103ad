"""The tables and the page of a study or of any runs, written side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from dml_jax import files
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.evaluation import metric_table
from dml_jax.studies import group_tables, outcomes, plan, runner, study_page
from dml_jax.studies.group_tables import Table
from dml_jax.studies.outcomes import Run

WRITERS = {"md": group_tables.markdown, "tex": group_tables.latex, "csv": group_tables.comma_separated}


class Summary(NamedTuple):
    """Finished runs, whose rows are compared by `metric`."""

    title: str
    lead: str  # paragraph below the title
    metric: str
    runs: list[Run]
    reported: dict[str, dict[str, Any]]  # published metrics by row and source
    failed: list[str]  # lines about trials without results


def of_study(root: Path) -> Summary:
    """The finished trials of the study in a directory."""
    facts = plan.read_facts(root)
    if facts is None:
        raise ConfigError(f"{root}: is not the directory of a study (no study.json)")
    order = {row["name"]: i for i, row in enumerate(facts["rows"])}
    runs, failed = [], []
    trials = plan.stated_trials(root, facts)
    done = outcomes.finished(trials)
    problems = runner.problems(root, trials, done)
    for trial in sorted(trials, key=lambda trial: (order[trial.row], trial.seed)):
        if trial.name in done:
            runs.append(outcomes.read_run(trial.directory, trial.row))
        else:
            reason = problems.get(trial.name) or outcomes.missing(trial) or "its members are not finished"
            failed.append(f"{trial.name}: {reason}")
    reported = {row["name"]: row.get("reported", {}) for row in facts["rows"]}
    for row in facts["rows"]:
        reported |= {f"{row['name']} + {kind}": metrics for kind, metrics in row.get("refined", {}).items()}
    lead = facts["source"]
    if facts["smoke"]:
        lead = f"SMOKE TEST: a few steps of a small network on digits; the numbers mean nothing. {lead}"
    if facts["paper"]:
        lead = f"Models are selected on the test classes, as the authors did. {lead}"
    return Summary(facts["title"], lead, facts["metric"], runs, reported, failed)


def of_runs(directories: Sequence[Path], metric: str) -> Summary:
    """Any finished runs."""
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: there is no such directory")
    # A run given twice, e.g. by overlapping patterns, must not count as two seeds.
    once = {directory.resolve(): directory for directory in directories}
    runs = outcomes.name_rows([outcomes.read_run(directory) for directory in once.values()])
    return Summary(f"{len(runs)} runs", "", metric, runs, {}, [])


def parts(summary: Summary) -> list[tuple[Table, outcomes.Group]]:
    """A table for each group of runs that may be compared."""
    if not summary.runs:
        reasons = f": {summary.failed[0]}" if summary.failed else ""
        raise CheckpointError(f"{summary.title}: no run is finished{reasons}")
    for run in summary.runs:
        found = (entry.name for entry in metric_table.columns(run.results) if entry.percent)  # the best is the highest
        known = [name for name in found if group_tables.numbers([run], name)]
        if summary.metric not in known:
            raise ConfigError(
                f"--metric={summary.metric}: {run.directory} has no such result to compare by; it has "
                f"{', '.join(known)}"
            )
    groups = outcomes.groups(summary.runs)
    made = []
    for number, group in enumerate(groups, start=1):
        # Rows of other images or protocols cannot be compared, so they are in tables of their own.
        title = summary.title if len(groups) == 1 else f"{summary.title}: {group.data or 'group'} ({number})"
        made.append((group_tables.build(title, group, summary.metric, summary.reported), group))
    return made


def publish(summary: Summary, output: Path | None, console: Console) -> None:
    """Prints the tables and, unless `output` is None, writes them there as report.md, .tex, .csv and .html."""
    made = parts(summary)
    for table, _ in made:
        group_tables.print_table(table, console)
    if len(made) > 1:
        console.print(
            f"{len(made)} tables: the runs have different test images or protocols, so that they cannot be compared",
            style="bold", markup=False,
        )  # fmt: skip
    for line in summary.failed:
        console.print(f"without results: {line}", markup=False)
    if output is None:
        return
    tests = [group_tables.pairs(table, group, summary.metric) for table, group in made]
    write_texts(output, [table for table, _ in made], [table for table in tests if table])
    target = output / "report.html"
    study_page.write(target, summary.title, summary.lead, made, summary.metric, failed=summary.failed)
    console.print(f"report: {target}   also report.md, .tex, .csv", markup=False, soft_wrap=True)


def write_texts(output: Path, made: Sequence[Table], tests: Sequence[Table] = ()) -> None:
    """Writes tables as report.md, report.tex and report.csv; of those of tests, the last holds none."""
    output.mkdir(parents=True, exist_ok=True)
    for suffix, text in WRITERS.items():
        written = made if suffix == "csv" else [*made, *tests]
        with files.atomic_write(output / f"report.{suffix}") as draft:
            draft.write_text("\n".join(map(text, written)), encoding="utf-8")
