"""The table and the page of a search."""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dml_jax.errors import CheckpointError
from dml_jax.evaluation import metric_table
from dml_jax.studies import group_tables, outcomes, plan, search, study_page, summary
from dml_jax.studies.group_tables import Cell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure


def publish(root: Path, output: Path, console: Console, storage: str = "") -> None:
    """Prints the table of a search and writes it with its figures.

    `storage` is its URL with a password; by default the one that was recorded, without.
    """
    facts = plan.read_facts(root) or {}
    stated = facts["search"]
    optuna = search.library()
    study = search.open_storage(optuna, storage or stated["storage"], stated["name"])
    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not done:
        raise CheckpointError(f"{root}: no trial of the search is finished; see the logs in {root / 'trials'}")
    table = _table(study, facts, root)
    group_tables.print_table(table, console)
    summary.write_texts(output, [table])
    directories = {f"trial {trial.number}": root / f"trial-{trial.number:04d}" for trial in done}
    trained = {name: path for name, path in directories.items() if outcomes.read_results(path)}  # see `Job._value`
    runs = [outcomes.read_run(path, name) for name, path in trained.items()]
    group = outcomes.Group("", "", {run.row: [run] for run in runs})
    figures = _figures(optuna, study)
    study_page.write(
        output / "report.html", facts["title"], facts["source"], [(table, group)], facts["metric"], figures
    )
    console.print(f"report: {output / 'report.html'}   also report.md, .tex, .csv", markup=False, soft_wrap=True)


def _table(study: Any, facts: Mapping[str, Any], root: Path) -> Table:
    stated, metric = facts["search"], facts["metric"]
    done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    best = max(done, key=lambda trial: (trial.value, -trial.number))
    parameters = sorted({name for trial in study.trials for name in trial.params})
    rows = []
    values = {trial.number: _value(trial) for trial in study.trials}
    for trial in sorted(study.trials, key=lambda trial: -(values[trial.number] or 0.0)):
        value = values[trial.number]
        objective = Cell("–") if value is None else Cell(f"{100 * value:.1f}", value, int(trial.number == best.number))
        params = [trial.params.get(name) for name in parameters]
        cells = [Cell(f"{v:.4g}" if isinstance(v, float) else str(v), v if isinstance(v, float | int) else float("nan"))
                 for v in params]  # fmt: skip
        rows.append((Cell(f"trial {trial.number}", trial.number), objective, Cell(trial.state.name.lower()), *cells))
    results = outcomes.read_results(root / f"trial-{best.number:04d}")
    test = "  ".join(f"{e.heading} {metric_table.cell(results, e)}" for e in metric_table.columns(results))
    compared = (
        "THE TEST CLASSES, as the authors did, so that the best value is an optimistic estimate"
        if facts["paper"] else f"{stated['share']:.0%} of the training classes, held out; the others are trained on"
    )  # fmt: skip
    notes = (
        f"Trials are compared on {compared}. Pruned trials: best value before they were stopped.",
        f"Trial {best.number} on the test classes: {test}. {results.get('protocol', '')}",
        f"To train with its values on all training classes: {best.user_attrs.get('command', '')}",
    )
    head = ("", f"{metric_table.heading(metric)} {'test' if facts['paper'] else 'validation'}", "state", *parameters)
    return Table(facts["title"], notes, head, tuple(rows), tuple(range(len(head))))


def _value(trial: Any) -> float | None:
    """The result of a trial, or its best evaluation so far: optuna gives a pruned trial the value of the last one."""
    value: float | None = trial.value
    return value if trial.state.name == "COMPLETE" else max(trial.intermediate_values.values(), default=None)


def _figures(optuna: Any, study: Any) -> "dict[str, Figure | SubFigure]":
    """Importance of the parameters and parallel coordinates, where there are enough trials."""
    import matplotlib

    matplotlib.use("Agg")
    from optuna.visualization import matplotlib as plots

    figures: dict[str, Figure | SubFigure] = {}
    for caption, plot in (
        ("Importance of the parameters: share of the objective's variance that each explains (fANOVA).",
         plots.plot_param_importances),
        ("Parallel coordinates: one line per finished trial, darker is better.", plots.plot_parallel_coordinate),
        ("The objective over the trials, and the best so far.", plots.plot_optimization_history),
    ):  # fmt: skip
        with suppress(ValueError, RuntimeError, ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figures[caption] = plot(study).figure
    return figures
