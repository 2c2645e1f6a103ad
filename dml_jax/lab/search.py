"""Searches for values of options with optuna, whose storage holds parameters, results and states.

A trial is an ordinary run. Trials are compared on held-out training classes, or, under the authors'
protocol, on the test classes. The next command continues an interrupted trial; the seed of the
sampler is the number of earlier trials. Commands may share a storage, e.g. a database server.
"""

import importlib
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_jax.analysis import text_tables
from dml_jax.analysis.text_tables import Table
from dml_jax.errors import CheckpointError, ConfigError, UserError
from dml_jax.evaluation import metric_table
from dml_jax.lab import outcomes, plan, runner, tables
from dml_jax.lab.definition import Search
from dml_jax.lab.plan import Settings, Trial
from dml_jax.lab.runner import Slot

VALIDATION_SHARE = 0.2  # part of the training classes on which trials are compared


def open_storage(url: str, name: str) -> Any:
    """The optuna study of that name, created if there is none."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ConfigError("a search needs optuna: pip install optuna") from None
    from sqlalchemy.pool import NullPool  # a requirement of optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        # Connections that a pool kept would still be open at the end.
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
        return optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
    except Exception as error:  # each database raises other errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = f"--storage: cannot be used ({reason.replace(url, 'the URL')})"
        raise ConfigError(message) from error


def make_trial(
    search: Search, settings: Settings, name: str, parameters: Mapping[str, Any]
) -> Trial:
    """The trial with given values."""
    overrides = dict(search.overrides(parameters))
    if not settings.paper:
        overrides |= {"data.validation_share": VALIDATION_SHARE, "train.select": "validation"}
    overrides |= {"seed": settings.seeds[0]}
    for key in overrides.keys() & settings.overrides.keys():
        remedy = "leave it out, or change it in the file of the search"
        raise ConfigError(f"--config.{key}: the search sets it; {remedy}")
    return plan.single(settings.root / name, settings.seeds[0], search.config, overrides, settings)


def example(search: Search) -> dict[str, Any]:
    """Values to check a configuration with: the first choices and the lower bounds."""
    space = search.space.items()
    return {name: found[0] if isinstance(found, tuple) else found.low for name, found in space}


def begun(study: Any) -> list[Any]:
    """The trials that have a work directory."""
    return [trial for trial in study.get_trials(deepcopy=False) if "directory" in trial.user_attrs]


def train(
    study: Any,
    asked: Any,
    search: Search,
    settings: Settings,
    metric: str,
    slot: Slot,
    stop: threading.Event,
) -> float | None:
    """Trains the run of a trial; its best evaluation, or None if it failed or was interrupted."""
    from dml_jax.train.records.logs import JsonLines  # imports JAX

    name = Path(asked.user_attrs["directory"]).name
    split = "test" if settings.paper else "validation"
    for other in begun(study):
        if other.state.name == "COMPLETE" and other.params == asked.params:
            runner.say(f"{name}: has the values and so the result of another trial")
            return float(other.value)
    try:
        trial = make_trial(search, settings, name, asked.params)
    except UserError as error:
        runner.say(f"{name}: not possible: {error}")
        return None
    if outcomes.missing(trial) and not runner.execute(settings.root, trial, slot, stop):
        return None
    key, lines = f"{split}/{metric}", JsonLines(trial.directory / "metrics.jsonl").read()
    values = [float(line[key]) for line in lines if line.get(key) is not None]
    if not values:
        raise ConfigError(f"metric={metric!r} of the study: no evaluation of {name} has it")
    best = max(values)
    runner.say(f"{name}: {metric} {best:.4f} on the {split} classes")
    return best


def run(
    name: str, search: Search, settings: Settings, metric: str, jobs: int, storage: str
) -> None:
    """Trains the missing trials of a search; see `runner.run_all`."""
    study, root, next_trial = open_storage(storage, name), settings.root.resolve(), threading.Lock()
    from optuna import distributions, exceptions, samplers, trial

    warnings.filterwarnings("ignore", category=exceptions.ExperimentalWarning)
    seed = len(study.trials)
    study.sampler = samplers.RandomSampler(seed)
    if search.sampler == "tpe":
        study.sampler = samplers.TPESampler(seed=seed, multivariate=True)
    space: dict[str, Any] = {}
    for key, values in search.space.items():
        if isinstance(values, tuple):
            space[key] = distributions.CategoricalDistribution(values)
        else:
            whole = isinstance(values.low, int) and isinstance(values.high, int)
            kind = distributions.IntDistribution if whole else distributions.FloatDistribution
            space[key] = kind(**asdict(values))
    mine = (found for found in begun(study) if Path(found.user_attrs["directory"]).parent == root)
    interrupted = [found for found in mine if found.state == trial.TrialState.RUNNING]

    def work(slot: Slot) -> None:
        while not stop.is_set():
            with next_trial:
                if interrupted:
                    asked = interrupted.pop(0)
                elif len(begun(study)) < search.trials:
                    asked = study.ask(space)
                    asked.set_user_attr("directory", str(root / f"trial-{asked.number:04d}"))
                else:
                    return
            value = train(study, asked, search, settings, metric, slot, stop)
            if value is not None:
                study.tell(asked.number, value)
            elif not stop.is_set():  # else the next command continues it
                study.tell(asked.number, state=trial.TrialState.FAIL)

    with ThreadPoolExecutor(jobs) as pool, runner.stoppable() as stop:
        list(pool.map(work, runner.slots(jobs)))


def publish(facts: Mapping[str, Any], storage: str, output: Path, console: Console) -> None:
    """Prints and writes the trials of a search, best first, and the test results of the best.

    report.csv has one line per trial.
    """
    made, metric = begun(open_storage(storage, facts["study"])), facts["metric"]
    done = [trial for trial in made if trial.state.name == "COMPLETE"]
    if not done:
        message = "no trial of the search is finished; see the logs of the trials"
        raise CheckpointError(f"{facts['title']}: {message}")
    best = max(done, key=lambda trial: (trial.value, -trial.number))
    ranked = sorted(made, key=lambda trial: -(trial.value or 0.0))
    heading = f"{metric_table.heading(metric)} {'test' if facts['paper'] else 'validation'}"
    columns = {
        "": [Path(trial.user_attrs["directory"]).name for trial in ranked],
        heading: ["–" if trial.value is None else f"{100 * trial.value:.1f}" for trial in ranked],
        "state": [trial.state.name.lower() for trial in ranked],
    }
    for name in sorted({name for trial in made for name in trial.params}):
        values = [trial.params.get(name) for trial in ranked]
        columns[name] = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
    directory = Path(best.user_attrs["directory"])
    results = outcomes.read(directory)
    test = "  ".join(
        f"{e.heading} {metric_table.cell(results, e)}" for e in metric_table.columns(results)
    )
    share = f"{VALIDATION_SHARE:.0%} of the training classes"
    compared = f"{share}, held out; the others are trained on"
    command = f"python -m dml_jax.main --config={directory}/config.json"
    if facts["paper"]:
        compared = "THE TEST CLASSES, as the authors did, so that the best value is optimistic"
    else:
        command += " --config.data.validation_share=0 --config.train.select=last"
    notes = (
        f"Trials are compared on {compared}.",
        f"{directory.name} on the test classes: {test}. {results.get('protocol', '')}",
        f"To train with its values: {command}",
    )
    table = Table(facts["title"], notes, columns, {(heading, ranked.index(best))})
    text_tables.print_table(table, console)
    text_tables.write_report(output, [table], facts["source"])
    lines = []
    for trial in made:
        facts = {"directory": trial.user_attrs["directory"], "state": trial.state.name.lower()}
        lines.append(facts | {"value": trial.value} | trial.params)
    tables.write_csv(output / "report.csv", lines)
