"""Searches for the values of options with optuna; commands on many machines may share the storage and the directory.

A trial is an ordinary run; the storage holds the parameters and results from which the next values are chosen, and
which trials are running. Trials are compared on held-out training classes, or on the test classes under the authors'
protocol. The sampler of trial N is seeded by N, so that an interrupted search continues as if it had not been.
"""

import importlib.util
import re
import shlex
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dml_jax.errors import ConfigError, UserError
from dml_jax.studies import outcomes, plan, runner
from dml_jax.studies.definition import Integers, Search, Uniform
from dml_jax.studies.plan import Settings, Trial
from dml_jax.studies.runner import Progress
from dml_jax.studies.slots import Slot

SMOKE_TRIALS = 2
BEFORE_PRUNING = 5  # trials that are trained to the end before others are pruned
LEASE = "lease"  # attribute of a running trial: the name of its job, and the time when it was last seen
RENEW = 15.0  # seconds between two renewals of a lease
LOST = 90.0  # seconds after which a trial whose lease was not renewed is taken over; clocks may differ by a minute
SETTLE = 2.0  # seconds in which another job may take it over at the same time; the last one has it


def library() -> Any:
    """The optuna package."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ConfigError("a search needs optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def without_password(url: str) -> str:
    """A URL of a database as it may be shown and stored."""
    return re.sub(r"(?<=[?&])\w*password=[^&]*&?", "", re.sub(r"(://[^:/@]*):.*@", r"\1@", url)).rstrip("?&")


def database(optuna: Any, url: str) -> Any:
    """Optuna's storage at a URL, which closes a connection after each use."""
    from sqlalchemy.pool import NullPool  # optuna needs it

    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def open_storage(optuna: Any, url: str, name: str) -> Any:
    """The optuna study of that name, which is created if there is none."""
    shown = without_password(url)
    if re.search(r"://[^:/@]*:.*[:/@].*@", url):  # errors would quote a part of it as the host or the port
        raise ConfigError(f"--storage={shown}: write the signs : / @ of the password as %3A, %2F and %40")
    for attempt in (1, 2):
        try:
            return optuna.create_study(
                storage=database(optuna, url), study_name=name, direction="maximize", load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=BEFORE_PRUNING),
            )  # fmt: skip
        except ImportError as error:
            driver = getattr(error.__cause__, "name", None) or "a database driver"
            package = '"psycopg[binary]"' if driver == "psycopg" else driver
            raise ConfigError(f"--storage={shown}: {driver} is not installed: pip install {package}") from None
        except Exception as error:  # each database has errors of its own
            if attempt == 1:
                time.sleep(1)  # another command may be creating the same tables
                continue
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"--storage={shown}: cannot be used ({reason})") from None


def count_ended(url: str, name: str) -> int:
    """How many trials of a search have finished, were pruned or failed."""
    optuna = library()
    return sum(trial.state.is_finished() for trial in open_storage(optuna, url, name).get_trials(deepcopy=False))


def check_space(search: Search) -> None:
    """Raises ConfigError if the space of a search is empty, or a parameter has no choices."""
    if not search.space or search.trials < 1:
        raise ConfigError(f"search of {search.config}: has no parameters or no trials")
    for name, values in search.space.items():
        if not values:
            raise ConfigError(f"search of {search.config}: {name} has no choices; give some")


def suggested(trial: Any, search: Search) -> dict[str, Any]:
    """The values of a trial of optuna; those that it already has do not change."""
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


def sampler(optuna: Any, search: Search, number: int) -> Any:
    """The sampler that chooses the values of a trial, seeded by its number."""
    match search.sampler:
        case "random":
            return optuna.samplers.RandomSampler(seed=number)
        case "tpe":
            return optuna.samplers.TPESampler(seed=number, multivariate=True)
        case "gp":
            if importlib.util.find_spec("torch") is None:
                raise ConfigError('sampler="gp": needs torch: pip install torch')
            return optuna.samplers.GPSampler(seed=number)


def make_trial(search: Search, settings: Settings, number: int, parameters: Mapping[str, Any]) -> Trial:
    """The trial with given values."""
    overrides = dict(search.overrides(parameters))
    if not settings.paper:
        overrides |= {"data.validation_share": search.validation_share, "train.select": "validation"}
    overrides |= {"seed": settings.seeds[0]}
    for key in overrides.keys() & settings.overrides.keys():
        raise ConfigError(f"--config.{key}: the search sets it; leave it out, or change it in the file of the search")
    config = plan.resolved(search.config, overrides, settings)
    name = f"trial-{number:04d}"
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


class Job:
    """Trains one trial at a time in a slot."""

    def __init__(
        self, optuna: Any, study: Any, trials: Any, search: Search, settings: Settings, metric: str, slot: Slot,
        progress: Progress,
    ):  # fmt: skip
        self.optuna, self.study, self.trials = optuna, study, trials  # `trials`: the storage
        self.search, self.settings, self.metric = search, settings, metric
        self.slot, self.progress = slot, progress
        self.split = "test" if settings.paper else "validation"
        self.name = uuid.uuid4().hex

    def ask(self, total: int) -> Any:
        """The next trial of optuna, which this job now runs; None when no more are needed."""
        states = self.optuna.trial.TrialState
        made = self.study.get_trials(deepcopy=False)
        study = self.trials.get_study_id_from_name(self.study.study_name)
        for trial in made[:total]:
            identifier = self.trials.get_trial_id_from_study_id_trial_number(study, trial.number)
            with suppress(self.optuna.exceptions.UpdateFinishedTrialError):
                # Of all jobs, the storage lets only one change a waiting trial to a running one.
                if trial.state == states.WAITING and self.trials.set_trial_state_values(identifier, states.RUNNING):
                    return self._asked(identifier, trial.number)
                if trial.state == states.RUNNING and time.time() > _seen(trial) + LOST:
                    self._renew(identifier)
                    time.sleep(SETTLE)
                    if self.trials.get_trial(identifier).user_attrs[LEASE][0] == self.name:
                        return self._asked(identifier, trial.number)
        if len(made) < total:
            identifier = self.trials.create_new_trial(study)
            number = self.trials.get_trial_number_from_id(identifier)
            if number < total:
                return self._asked(identifier, number)
            self.trials.set_trial_state_values(identifier, states.WAITING)  # for a longer search
        return None

    def _asked(self, identifier: int, number: int) -> Any:
        self._renew(identifier)
        self.study.sampler = sampler(self.optuna, self.search, number)
        self.study.get_trials(deepcopy=False)  # of which it keeps copies
        return self.optuna.trial.Trial(self.study, identifier)

    def _renew(self, identifier: int) -> None:
        self.trials.set_trial_user_attr(identifier, LEASE, [self.name, time.time()])

    def train(self, asked: Any) -> None:
        """Trains the run of a trial and stores its best evaluation; without one, optuna's FAIL or PRUNED."""
        states = self.optuna.trial.TrialState
        value, state = self._value(asked)
        if state == states.WAITING:  # for the same command, or for other ones
            self.trials.set_trial_state_values(asked._trial_id, state)
        else:
            self.study.tell(asked, value, None if state == states.COMPLETE else state, skip_if_finished=True)

    def _value(self, asked: Any) -> tuple[float | None, Any]:
        root, name = self.settings.root, f"trial-{asked.number:04d}"
        states = self.optuna.trial.TrialState
        parameters = suggested(asked, self.search)
        for other in self.study.get_trials(deepcopy=False, states=(states.COMPLETE,)):
            if other.params == parameters:  # the seed, and so the result, would be the same
                self.progress.print(f"{name}: has the values of trial-{other.number:04d}, and so its result")
                return float(other.value), states.COMPLETE
        try:
            trial = make_trial(self.search, self.settings, asked.number, parameters)
        except UserError as error:
            runner.problem_file(root, name).write_text(str(error), encoding="utf-8")
            self.progress.print(f"{name}: not possible: {error}")
            return None, states.FAIL
        asked.set_user_attr("command", main_command(self.search, self.settings, parameters))
        seen = set(self.study.get_trials(deepcopy=False)[asked.number].intermediate_values)
        renewed, pruned = time.monotonic(), False

        def watch() -> bool:
            nonlocal renewed, pruned
            if time.monotonic() > renewed + RENEW:
                self._renew(asked._trial_id)
                renewed = time.monotonic()
            for step, value in outcomes.evaluations(trial.directory, self.split, self.metric):
                if step not in seen:
                    asked.report(value, step)
                    seen.add(step)
            pruned = pruned or (bool(seen) and asked.should_prune())
            return pruned

        def best() -> float:
            points = outcomes.evaluations(trial.directory, self.split, self.metric)
            return max((value for _, value in points), default=float("nan"))

        def result() -> str:  # of the test classes only if the search is allowed to see them
            return f"{self.metric} {best():.4f} on the {self.split} classes"

        if outcomes.is_finished(trial) or runner.execute(root, trial, self.slot, self.progress, watch, result):
            value = best()
            return (value, states.COMPLETE) if value == value else (None, states.FAIL)
        if pruned:
            self.progress.print(f"{trial.name}: pruned after step {max(seen)}")
            return None, states.PRUNED
        return None, states.FAIL if runner.problem_file(root, trial.name).exists() else states.WAITING


def _seen(trial: Any) -> float:
    """When the job of a running trial was last seen."""
    return float(trial.user_attrs[LEASE][1]) if LEASE in trial.user_attrs else float(trial.datetime_start.timestamp())


def run(
    name: str, search: Search, settings: Settings, metric: str, slots: Sequence[Slot], storage: str,
    print_line: Callable[[str], None],
) -> int:  # fmt: skip
    """Trains the trials of a search that are missing and waits for those of other commands; see `runner.run_all`."""
    optuna = library()
    total = SMOKE_TRIALS if settings.smoke else search.trials
    sampler(optuna, search, 0)
    open_storage(optuna, storage, name)
    trials = database(optuna, storage)
    asking = threading.Lock()

    def job(slot: Slot, progress: Progress) -> None:
        own = open_storage(optuna, storage, name)  # it has one sampler
        of_slot = Job(optuna, own, trials, search, settings, metric, slot, progress)
        states, told = optuna.trial.TrialState, False
        while not progress.stop.is_set():
            with asking:
                asked = of_slot.ask(total)
            if asked is not None:
                of_slot.train(asked)
            elif running := own.get_trials(deepcopy=False, states=(states.RUNNING,)):
                if not told:
                    told = True
                    progress.print(f"waiting for trial-{running[0].number:04d}, which is running elsewhere")
                progress.stop.wait(runner.POLL)
            else:
                return

    return runner.in_parallel(slots, job, print_line)
