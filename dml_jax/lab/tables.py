"""Tables over runs: on the console, as Markdown, LaTeX and CSV, with heat maps of grids."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from dml_jax import drawing, files
from dml_jax.analysis import text_tables
from dml_jax.analysis.text_tables import Table
from dml_jax.config import flatten
from dml_jax.errors import CheckpointError, counted, printable, require
from dml_jax.evaluation import metric_table
from dml_jax.evaluation.metric_table import MetricEntry
from dml_jax.lab import outcomes, plan, runner
from dml_jax.lab.outcomes import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIGITS = 1  # decimal places of percentages
NOT_VARIED = ("paper", "seed", "name")  # keys in which runs differ trivially


class Summary(NamedTuple):
    """Finished runs, and unfinished ones with a `problem`; `metric` compares rows."""

    title: str
    lead: str  # paragraph below the title
    metric: str
    runs: list[Run]
    reported: Mapping[str, Mapping[str, Any]] = {}  # published metrics by row and source


def summarise_study(root: Path, facts: Mapping[str, Any]) -> Summary:
    """The trials of a study, from its directory and `study.json`."""
    order = {row["name"]: i for i, row in enumerate(facts["rows"])}
    runs = []
    trials = plan.read_trials(root, facts)
    done = outcomes.finished(trials)
    for trial in sorted(trials, key=lambda trial: (order[trial.row], trial.seed)):
        if trial.name in done:
            runs.append(outcomes.read_run(trial.directory, trial.row))
        else:
            failure = runner.failure(root, trial.name)
            reason = failure or outcomes.why_unfinished(trial) or "its members are not finished"
            runs.append(Run(trial.directory, trial.row, problem=reason))
    reported = {row["name"]: row["reported"] for row in facts["rows"]}
    for row in facts["rows"]:
        reported |= {f"{row['name']} + {kind}": metrics for kind, metrics in row["refined"].items()}
    lead = facts["source"]
    if facts["paper"]:
        lead = f"Models are selected on the test classes, as the authors did. {lead}"
    return Summary(facts["title"], lead, facts["metric"], runs, reported)


def summarise_runs(directories: Sequence[Path], metric: str) -> Summary:
    """Summarises any finished runs."""
    # A duplicate run, e.g. from overlapping patterns, must not count as two seeds.
    once = {directory.resolve(): directory for directory in directories}
    runs = outcomes.name_rows([outcomes.read_run(directory) for directory in once.values()])
    return Summary(counted(len(runs), "run"), "", metric, runs)


def table(summary: Summary) -> tuple[Table, dict[str, list[Run]]]:
    """The table of the runs, and the finished runs by row.

    Rows without results have dashes and a note. ConfigError for runs that cannot be compared.
    """
    from dml_jax.evaluation import protocol  # imports JAX

    failed = [run for run in summary.runs if run.problem]
    finished = [run for run in summary.runs if not run.problem]
    if not finished:
        reasons = f": {failed[0].directory.name}: {failed[0].problem}" if failed else ""
        raise CheckpointError(f"{summary.title}: no run is finished{reasons}")
    for run in finished:
        entries = metric_table.columns(run.results)
        # Only percentages, of which the highest is the best.
        percentages = [entry.name for entry in entries if entry.percent]
        available = [name for name in percentages if numbers([run], name)]
        problem = f"{run.directory} has no such metric; it has {', '.join(available)}"
        require(summary.metric in available, f"--metric={summary.metric}: {problem}")
    protocol_used, trained = outcomes.comparable(finished)
    rows = outcomes.all_rows(trained)
    for run in failed:
        if run.row not in trained:
            rows.setdefault(run.row, []).append(run)
    entries = metric_table.columns({key: 0 for runs in rows.values() for key in runs[0].results})
    reported = ((runs[0], summary.reported.get(name, {})) for name, runs in rows.items())
    published_by_row = [outcomes.published_values(run, metrics) for run, metrics in reported]
    sources = list(dict.fromkeys(source for metrics in published_by_row for source in metrics))
    counts = [sum(not run.problem for run in runs) for runs in rows.values()]
    columns = {"": list(map(printable, rows)), "seeds": [str(count or "–") for count in counts]}
    protocols = (runs[0].results.get("protocol", "") for runs in rows.values())
    distances = [protocol.distance_of(text)[0] for text in protocols]
    if len(set(filter(None, distances))) > 1:
        columns["distance"] = [printable(name) for name in distances]
    best: set[tuple[str, int]] = set()
    not_percent: list[str] = []  # headings of published metrics such as density
    for entry in entries:
        columns[entry.heading], first = _measured(list(rows.values()), entry)
        best |= {(entry.heading, row) for row in first}
        for source in sources:
            cells = [_published(metrics.get(source, {}), entry) for metrics in published_by_row]
            if any(cells):
                columns[f"{entry.heading} {source}"] = cells
                not_percent += [] if entry.percent else [entry.heading, f"{entry.heading} {source}"]
    if len(rows) > 1 and (cells := _significance(rows, summary.metric)):
        columns["p"] = cells
    columns["time"] = []
    for runs in rows.values():  # the median over seeds
        times = [time for run in runs if (time := run.results.get("timing", {}).get("seconds"))]
        columns["time"].append(outcomes.duration(statistics.median(times)) if times else "")
    main = next(entry.heading for entry in entries if entry.name == summary.metric)
    published_headings = (f"{main} {source}" for source in sources)
    selected = (main, *published_headings, *(not_percent or ("MAP@R", "NMI")))
    selected = ("", "seeds", "distance", *selected, "p", "time")
    narrow = [heading for heading in columns if heading in selected]
    problems = {run.problem: name for name, runs in rows.items() for run in runs if run.problem}
    notes = [f"{name}: –, {problem}." for problem, name in problems.items()]
    partial = [run for run in failed if run.row in trained]
    notes += [f"Without {run.directory.name}: {run.problem}." for run in partial]
    data = next((run.config["data"]["name"] for run in finished if run.config), "of the members")
    notes.append(f"Data: {data}. Evaluation: {protocol_used}.")
    published = any(any(by_source.values()) for by_source in published_by_row)
    notes += _explanations(trained, main if "p" in columns else "", published)
    title = printable(summary.title)
    return Table(title, list(map(printable, notes)), columns, best, narrow), trained


def publish(
    summary: Summary, output: Path | None, console: Console, columns: Sequence[str] = ()
) -> None:
    """Prints the table; writes it to `output`, if given, as report.md, .tex, .csv and a heat map.

    `columns` are the headings to show; by default all.
    """
    result, trained = table(summary)
    result = text_tables.only(result, columns) if columns else result
    text_tables.print_table(result, console)
    if output is None:
        return
    text_tables.write_report(output, [result], summary.lead)
    records = lines(summary.runs)
    columns = list(dict.fromkeys(key for line in records for key in line))
    rows = ([line.get(column, "") for column in columns] for line in records)
    files.write_csv(output / "report.csv", [columns, *rows])
    if grid := plot_grid(trained, summary.metric):
        grid.savefig(output / "grid.png", dpi=130)
    message = f"report: {output / 'report.md'}   also report.tex, report.csv"
    console.print(message, markup=False, soft_wrap=True)


def lines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One record per run: row, seed, the options in which runs differ, and all numbers.

    Metrics are fractions; those after refinement have its name as a prefix.
    """
    flat = [flatten(run.config) for run in runs]
    texts: dict[str, set[str]] = {}  # of the values of each key
    for key, value in (item for values in flat for item in values.items()):
        if key.partition(".")[0] not in NOT_VARIED:
            texts.setdefault(key, set()).add(repr(value))
    varied = [key for key, distinct in texts.items() if len(distinct) > 1]
    records = []
    for run, values in zip(runs, flat, strict=True):
        refined = run.results.get("refined", {})
        kinds = ((f"{kind} ", part) for kind, part in refined.items())
        parts = [("", run.results), *kinds, ("", run.results.get("timing", {}))]
        entries = {f"{prefix}{key}": value for prefix, part in parts for key, value in part.items()}
        line = {"row": printable(run.row), "seed": values.get("seed", "")}
        line |= {"directory": printable(str(run.directory)), "data": values.get("data.name", "")}
        line |= {"protocol": run.results.get("protocol", "")}
        line |= {key: values[key] for key in varied if key in values}
        line |= {key: value for key, value in entries.items() if isinstance(value, int | float)}
        records.append(line | {"problem": printable(run.problem)})
    return records


def _explanations(rows: Mapping[str, Sequence[Run]], compared: str, published: bool) -> list[str]:
    """Notes on trained rows, on p-values of the column `compared`, and on published numbers."""
    notes = [
        "Retrieval and NMI in %, mean ± standard deviation over seeds; bold: best of a column. "
        "Time: training without compilation and evaluation, median over seeds."
    ]
    models = {name: {run.results.get("model") for run in runs} for name, runs in rows.items()}
    if on_test := [name for name, selections in models.items() if "test" in selections]:
        affected = "all rows" if len(on_test) == len(rows) else ", ".join(on_test)
        warning = "Models were selected on the test classes, so their results are optimistic"
        notes.append(f"{warning}: {affected}.")
    if compared:
        notes.append(
            f"p: Welch's test over seeds for the difference from the row with the best {compared}, "
            "corrected for the number of rows (Holm), but not for the choice of the best row."
        )
    if published and len(on_test) < len(rows):
        remaining = "the other rows" if on_test else "these runs"
        origin = "Published numbers usually come from the best epoch on the test set"
        notes.append(f"{origin}; those of {remaining} do not.")
    return notes


def numbers(runs: Sequence[Run], metric: str) -> list[float]:
    """The values of a metric in the runs that define it (null: no relevant images)."""
    return [run.results[metric] for run in runs if isinstance(run.results.get(metric), float | int)]


def _measured(rows: Sequence[Sequence[Run]], entry: MetricEntry) -> tuple[list[str], list[int]]:
    """Mean ± standard deviation of each row; the best rows if higher is better."""

    def text(value: float) -> str:
        return f"{100 * value:.{DIGITS}f}" if entry.percent else f"{value:.3f}"

    values_by_row = [numbers(runs, entry.name) for runs in rows]
    means = [statistics.fmean(values) if values else None for values in values_by_row]
    cells = []
    for values, mean in zip(values_by_row, means, strict=True):
        spread = f" ± {text(statistics.stdev(values))}" if len(values) > 1 else ""
        cells.append("–" if mean is None else text(mean) + spread)
    defined = {mean for mean in means if mean is not None}
    ranked = entry.percent and len(defined) > 1
    return cells, [row for row, mean in enumerate(means) if ranked and mean == max(defined)]


def _published(metrics: Mapping[str, float], entry: MetricEntry) -> str:
    if entry.name not in metrics:
        return ""
    if not entry.percent:
        return f"{metrics[entry.name]:.2f}"
    return metric_table.cell({**metrics, "digits": metric_table.printed_digits(metrics)}, entry)


def _significance(rows: Mapping[str, list[Run]], metric: str) -> list[str]:
    """p-values of the differences from the best row; empty without two rows of two seeds."""
    values = {name: numbers(runs, metric) for name, runs in rows.items()}
    best = max(filter(values.get, values), key=lambda name: statistics.fmean(values[name]))
    p_by_row = {
        name: outcomes.seed_test(row_values, values[best]) for name, row_values in values.items()
    }
    p_values = list((p_by_row | {best: math.nan}).values())
    defined = [p for p in p_values if not math.isnan(p)]
    corrected = iter(outcomes.holm(defined))
    cells = ["" if math.isnan(p) else outcomes.p_text(next(corrected)) for p in p_values]
    return cells if defined else []


def plot_grid(trained: Mapping[str, Sequence[Run]], metric: str) -> "Figure | None":
    """A heat map of rows like "layers=1 heads=2"; None unless all vary the same two options."""
    matches = {name: re.fullmatch(r"(\S+)=(\S+) (\S+)=(\S+)", name) for name in trained}
    keys = {(m[1], m[3]) if m else ("", "") for m in matches.values()}
    if len(keys) != 1 or ("", "") in keys:
        return None
    ((first, second),) = keys
    values = {
        (m[2], m[4]): 100 * statistics.fmean(numbers(trained[name], metric) or [math.nan])
        for name, m in matches.items()
        if m
    }
    rows, columns = (list(dict.fromkeys(key[i] for key in values)) for i in range(2))
    if min(len(rows), len(columns)) < 2:
        return None
    table = [[values.get((row, column), math.nan) for column in columns] for row in rows]
    figure = drawing.figure(1.8 + 0.75 * len(columns), 1.2 + 0.45 * len(rows))
    axes = figure.subplots()
    image = axes.imshow(table, cmap="Blues", aspect="auto")
    middle = (max(values.values()) + min(values.values())) / 2
    for (row, column), value in values.items():
        colour = "white" if value > middle else drawing.INK
        x, y = columns.index(column), rows.index(row)
        axes.text(x, y, f"{value:.1f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=second.replace("_", " "), ylabel=first.replace("_", " "))
    figure.colorbar(image, ax=axes, label=f"{metric_table.heading(metric)}, %")
    return figure
