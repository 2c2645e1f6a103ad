"""Searches for the values of options with optuna; its storage holds parameters, results and states of the trials.

A trial is an ordinary run. Trials are compared on held-out training classes, or on the test classes under the authors'
protocol. The sampler of the Nth trial is seeded by N, so that an interrupted search continues as if it had not been.
Commands with directories of their own may share a storage, e.g. a database server.
"""

import importlib
import json
import shlex
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dml_jax.errors import CheckpointError, ConfigError, UserError
from dml_jax.evaluation import metric_table
from dml_jax.studies import outcomes, plan, runner
from dml_jax.studies.definition import Integers, Search, Uniform
from dml_jax.studies.plan import Settings, Trial
from dml_jax.studies.runner import Progress, Slot
from dml_jax.studies.tables import Cell, Table

BEFORE_PRUNING = 5  # trials that are trained to the end before others are pruned


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
        return optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=BEFORE_PRUNING),
        )  # fmt: skip
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


def sampler(search: Search, number: int) -> Any:
    """The sampler that chooses the values of a trial, seeded by its number."""
    samplers = library().samplers
    if search.sampler == "random":
        return samplers.RandomSampler(seed=number)
    return samplers.TPESampler(seed=number, multivariate=True)


def make_trial(search: Search, settings: Settings, name: str, parameters: Mapping[str, Any]) -> Trial:
    """The trial with given values."""
    overrides = dict(search.overrides(parameters))
    if not settings.paper:
        overrides |= {"data.validation_share": search.validation_share, "train.select": "validation"}
    overrides |= {"seed": settings.seeds[0]}
    for key in overrides.keys() & settings.overrides.keys():
        raise ConfigError(f"--config.{key}: the search sets it; leave it out, or change it in the file of the search")
    config = plan.resolved(search.config, overrides, settings)
    return Trial(name, name, settings.seeds[0], settings.root / name, config, length=plan.length(config))


def example(search: Search) -> dict[str, Any]:
    """Values of the parameters with which a configuration can be checked: the first choices and the lower bounds."""
    return {name: values[0] if isinstance(values, tuple) else values.low for name, values in search.space.items()}


def main_command(search: Search, settings: Settings, parameters: Mapping[str, Any]) -> str:
    """The command that trains with given values, seed and protocol on all training classes."""
    overrides = {**search.overrides(parameters), **settings.overrides, "seed": settings.seeds[0]}
    options = [f"--config.{key}={_as_text(value)}" for key, value in overrides.items() if (key, value) != ("seed", 0)]
    protocol = ["--protocol=paper"] if settings.paper else []
    return shlex.join(["python", "-m", "dml_jax.main", f"--config={search.config}", *protocol, *options])


def _as_text(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple | list) and value and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def evaluations(directory: Path, split: str, metric: str) -> list[tuple[int, float]]:
    """(step, metric) of each evaluation on a split so far; other lines, also one that is being written, are ignored."""
    path, key, found = directory / "metrics.jsonl", f"{split}/{metric}", []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            line = json.loads(text)
            found.append((int(line["step"]), float(line[key])))
    return found


def begun(study: Any) -> dict[str, Any]:
    """The last of optuna's trials of each work directory: an interrupted trial is followed by another one."""
    return {trial.user_attrs["directory"]: trial for trial in study.trials if "directory" in trial.user_attrs}


class Job:
    """Trains one trial at a time in a slot."""

    def __init__(self, study: Any, search: Search, settings: Settings, metric: str, slot: Slot, progress: Progress):
        self.study, self.search, self.settings, self.metric = study, search, settings, metric
        self.slot, self.progress = slot, progress
        self.split = "test" if settings.paper else "validation"

    def ask(self) -> Any:
        """The next trial of optuna, with its directory; None when no more are needed."""
        waiting = library().trial.TrialState.WAITING
        known = begun(self.study)
        if len(known) >= self.search.trials and not any(trial.state == waiting for trial in known.values()):
            return None
        self.study.sampler = sampler(self.search, len(known))
        trial = self.study.ask()
        if "directory" not in trial.user_attrs:
            trial.set_user_attr("directory", str((self.settings.root / f"trial-{len(known):04d}").resolve()))
        return trial

    def train(self, asked: Any) -> None:
        """Trains the run of a trial and stores its best evaluation; without one, optuna's FAIL or PRUNED."""
        states, root = library().trial.TrialState, self.settings.root
        name = Path(asked.user_attrs["directory"]).name
        parameters = suggested(asked, self.search)
        for other in self.study.get_trials(deepcopy=False, states=(states.COMPLETE,)):
            if other.params == parameters:  # the seed, and so the result, would be the same
                self.progress.print(f"{name}: has the values and so the result of another trial")
                self.study.tell(asked, float(other.value))
                return
        try:
            trial = make_trial(self.search, self.settings, name, parameters)
        except UserError as error:
            self.progress.print(f"{name}: not possible: {error}")
            self.study.tell(asked, state=states.FAIL)
            return
        asked.set_user_attr("command", main_command(self.search, self.settings, parameters))
        seen: dict[int, float] = {}

        def pruned() -> bool:
            for step, value in evaluations(trial.directory, self.split, self.metric):
                if step not in seen:
                    asked.report(value, step)
                    seen[step] = value
            return bool(seen) and bool(asked.should_prune())

        def result() -> str:  # of the test classes only if the search is allowed to see them
            pruned()
            return f"{self.metric} {max(seen.values(), default=float('nan')):.4f} on the {self.split} classes"

        if outcomes.is_finished(trial) or runner.execute(root, trial, self.slot, self.progress, pruned, result):
            pruned()
            self.study.tell(asked, max(seen.values(), default=None), None if seen else states.FAIL)
        elif runner.problem_file(root, name).exists():
            self.study.tell(asked, state=states.FAIL)
        elif not self.progress.stop.is_set():
            self.progress.print(f"{name}: pruned after step {max(seen)}")
            self.study.tell(asked, state=states.PRUNED)


def resume_interrupted(study: Any, root: Path) -> None:
    """Queues the trials that an earlier command with this directory has not ended."""
    states = library().trial.TrialState
    for trial in begun(study).values():
        if trial.state == states.RUNNING and Path(trial.user_attrs["directory"]).parent == root.resolve():
            study.tell(trial.number, state=states.FAIL)
            study.enqueue_trial(trial.params, {"directory": trial.user_attrs["directory"]})


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
    resume_interrupted(open_storage(storage, name), settings.root)
    asking = threading.Lock()

    def job(slot: Slot, progress: Progress) -> None:
        own = Job(open_storage(storage, name), search, settings, metric, slot, progress)  # it has one sampler
        while not progress.stop.is_set():
            with asking:
                asked = own.ask()
            if asked is None:
                return
            own.train(asked)

    return runner.in_parallel(runner.slots(jobs), job, print_line)


def table(study: Any, facts: Mapping[str, Any]) -> Table:
    """The trials of a search, best first, with the result of the best on the test classes, and its command."""
    made, metric = list(begun(study).values()), facts["metric"]
    done = [trial for trial in made if trial.state.name == "COMPLETE"]
    if not done:
        raise CheckpointError(f"{facts['title']}: no trial of the search is finished; see the logs of the trials")
    best = max(done, key=lambda trial: (trial.value, -trial.number))
    names = {trial.number: Path(trial.user_attrs["directory"]).name for trial in made}
    parameters = sorted({name for trial in made for name in trial.params})
    values = {trial.number: _value(trial) for trial in made}
    rows = []
    for trial in sorted(made, key=lambda trial: -(values[trial.number] or 0.0)):
        value = values[trial.number]
        objective = Cell("–") if value is None else Cell(f"{100 * value:.1f}", value, int(trial.number == best.number))
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
        f"Trials are compared on {compared}. Pruned trials: best value before they were stopped.",
        f"{names[best.number]} on the test classes: {test}. {results.get('protocol', '')}",
        f"To train with its values on all training classes: {best.user_attrs.get('command', '')}",
    )
    head = ("", f"{metric_table.heading(metric)} {'test' if facts['paper'] else 'validation'}", "state", *parameters)
    return Table(facts["title"], notes, head, tuple(rows), tuple(range(len(head))))


def lines(study: Any) -> list[dict[str, Any]]:
    """One line per trial, for report.csv."""
    return [
        {"directory": directory, "state": trial.state.name.lower(), "value": _value(trial), **trial.params}
        for directory, trial in begun(study).items()
    ]


def _value(trial: Any) -> float | None:
    """The result of a trial, or its best evaluation so far: optuna gives a pruned trial the value of the last one."""
    value: float | None = trial.value
    return value if trial.state.name == "COMPLETE" else max(trial.intermediate_values.values(), default=None)
