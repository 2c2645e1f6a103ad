"""Searches for the values of options with optuna; its storage holds parameters, results and states of the trials.

A trial is an ordinary run. Trials are compared on held-out training classes, or on the test classes under the authors'
protocol. An interrupted trial is continued by the next command; the sampler is seeded by the number of trials before.
Commands with directories of their own may share a storage, e.g. a database server.
"""

import importlib
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console

from dml_jax.errors import CheckpointError, ConfigError, UserError
from dml_jax.evaluation import metric_table
from dml_jax.studies import outcomes, plan, runner, tables
from dml_jax.studies.definition import Integers, Search, Uniform
from dml_jax.studies.plan import Settings, Trial
from dml_jax.studies.runner import Progress, Slot
from dml_jax.studies.tables import Cell, Table


def library() -> Any:
    """The optuna package."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ConfigError("a search needs optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_storage(url: str, name: str) -> Any:
    """The optuna study of that name, created if there is none."""
    optuna = library()
    from sqlalchemy.pool import NullPool  # a requirement of optuna

    try:
        # Connections that a pool kept would still be open at the end.
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
        return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    except Exception as error:  # each database has errors of its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"--storage: cannot be used ({reason.replace(url, 'the URL')})") from error


def suggested(trial: Any, search: Search) -> dict[str, Any]:
    """The values of a trial of optuna; existing ones do not change."""
    found: dict[str, Any] = {}
    for name, values in search.space.items():
        match values:
            case Uniform(low, high, log):
                found[name] = trial.suggest_float(name, low, high, log=log)
            case Integers(low, high):
                found[name] = trial.suggest_int(name, low, high)
            case _:
                found[name] = trial.suggest_categorical(name, values)
    return found


def make_trial(search: Search, settings: Settings, name: str, parameters: Mapping[str, Any]) -> Trial:
    """The trial with given values."""
    overrides = dict(search.overrides(parameters))
    if not settings.paper:
        overrides |= {"data.validation_share": search.validation_share, "train.select": "validation"}
    overrides |= {"seed": settings.seeds[0]}
    for key in overrides.keys() & settings.overrides.keys():
        raise ConfigError(f"--config.{key}: the search sets it; leave it out, or change it in the file of the search")
    return plan.single(settings.root / name, settings.seeds[0], search.config, overrides, settings)


def example(search: Search) -> dict[str, Any]:
    """Values of the parameters with which a configuration can be checked: the first choices and the lower bounds."""
    return {name: values[0] if isinstance(values, tuple) else values.low for name, values in search.space.items()}


def begun(study: Any) -> dict[str, Any]:
    """The last of optuna's trials of each work directory: an interrupted trial is followed by another one."""
    return {trial.user_attrs["directory"]: trial for trial in study.trials if "directory" in trial.user_attrs}


class Unsuccessful(Exception):
    """A trial that failed or was interrupted."""


def train(asked: Any, search: Search, settings: Settings, metric: str, slot: Slot, progress: Progress) -> float:
    """Trains the run of a trial of optuna; its best evaluation."""
    root, study, split = settings.root, asked.study, "test" if settings.paper else "validation"
    if "directory" not in asked.user_attrs:  # else it continues an interrupted one
        asked.set_user_attr("directory", str((root / f"trial-{asked.number:04d}").resolve()))
    name = Path(asked.user_attrs["directory"]).name
    parameters = suggested(asked, search)
    for other in study.get_trials(deepcopy=False, states=(library().trial.TrialState.COMPLETE,)):
        if other.params == parameters:  # the seed, and so the result, would be the same
            progress.print(f"{name}: has the values and so the result of another trial")
            return float(other.value)
    try:
        trial = make_trial(search, settings, name, parameters)
    except UserError as error:
        progress.print(f"{name}: not possible: {error}")
        raise Unsuccessful from error
    if not outcomes.missing(trial) or runner.execute(root, trial, slot, progress):
        key, texts = f"{split}/{metric}", (trial.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        best = max(float(line[key]) for line in map(json.loads, texts) if key in line)
        progress.print(f"{name}: {metric} {best:.4f} on the {split} classes")
        return best
    if progress.stop.is_set():
        study.stop()
        study.enqueue_trial(asked.params, {"directory": asked.user_attrs["directory"]})
    raise Unsuccessful


def run(
    name: str,
    search: Search,
    settings: Settings,
    metric: str,
    jobs: int,
    storage: str,
    print_line: Callable[[str], None],
) -> int:
    """Trains the missing trials of a search; see `runner.run_all`."""
    study, states = open_storage(storage, name), library().trial.TrialState
    for trial in begun(study).values():  # those that a killed command with this directory has not ended
        if trial.state == states.RUNNING and Path(trial.user_attrs["directory"]).parent == settings.root.resolve():
            study.tell(trial.number, state=states.FAIL)
            study.enqueue_trial(trial.params, {"directory": trial.user_attrs["directory"]})
    known = begun(study).values()
    missing = search.trials - len(known) + sum(trial.state == states.WAITING for trial in known)
    samplers, seed = library().samplers, len(study.trials)
    study.sampler = (
        samplers.RandomSampler(seed)
        if search.sampler == "random"
        else samplers.TPESampler(seed=seed, multivariate=True)
    )
    free: SimpleQueue[Slot] = SimpleQueue()
    for slot in runner.slots(jobs):
        free.put(slot)
    with runner.stoppable(print_line) as progress:

        def objective(asked: Any) -> float:
            slot = free.get()
            try:
                return train(asked, search, settings, metric, slot, progress)
            finally:
                free.put(slot)

        if missing > 0:
            study.optimize(objective, missing, n_jobs=jobs, catch=(Unsuccessful,))
    return progress.code


def table(study: Any, facts: Mapping[str, Any]) -> Table:
    """The trials of a search, best first, with the result of the best on the test classes, and its command."""
    made, metric = list(begun(study).values()), facts["metric"]
    done = [trial for trial in made if trial.state.name == "COMPLETE"]
    if not done:
        raise CheckpointError(f"{facts['title']}: no trial of the search is finished; see the logs of the trials")
    best = max(done, key=lambda trial: (trial.value, -trial.number))
    names = {trial.number: Path(trial.user_attrs["directory"]).name for trial in made}
    parameters = sorted({name for trial in made for name in trial.params})
    rows = []
    for trial in sorted(made, key=lambda trial: -(trial.value or 0.0)):
        value = trial.value
        objective = Cell("–") if value is None else Cell(f"{100 * value:.1f}", value, trial.number == best.number)
        params = [trial.params.get(name) for name in parameters]
        cells = [Cell(f"{v:.4g}" if isinstance(v, float) else str(v)) for v in params]
        rows.append((Cell(names[trial.number]), objective, Cell(trial.state.name.lower()), *cells))
    results = outcomes.read_results(Path(best.user_attrs["directory"]))
    test = "  ".join(f"{e.heading} {metric_table.cell(results, e)}" for e in metric_table.columns(results))
    compared = (
        "THE TEST CLASSES, as the authors did, so that the best value is an optimistic estimate"
        if facts["paper"] else f"{facts['search']['share']:.0%} of the training classes, held out; the others are "
        "trained on"
    )  # fmt: skip
    notes = (
        f"Trials are compared on {compared}.",
        f"{names[best.number]} on the test classes: {test}. {results.get('protocol', '')}",
        f"To train with its values: python -m dml_jax.main --config={best.user_attrs['directory']}/config.json"
        + ("" if facts["paper"] else " --config.data.validation_share=0 --config.train.select=last"),
    )
    head = ("", f"{metric_table.heading(metric)} {'test' if facts['paper'] else 'validation'}", "state", *parameters)
    return Table(facts["title"], notes, head, tuple(rows), tuple(range(len(head))))


def publish(facts: Mapping[str, Any], storage: str, output: Path, console: Console) -> None:
    """Prints the table of a search and writes it, with one line per trial in report.csv."""
    study = open_storage(storage, facts["study"])
    made = table(study, facts)
    tables.print_table(made, console)
    tables.write(output, [made], facts["source"])
    lines = [
        {"directory": directory, "state": trial.state.name.lower(), "value": trial.value, **trial.params}
        for directory, trial in begun(study).items()
    ]
    tables.write_csv(output / "report.csv", lines)
