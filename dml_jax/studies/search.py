"""Searches for the values of options with optuna; many workers may share the storage and the directory.

A trial is an ordinary run, claimed as in `runner`; the storage holds the parameters and results from which the next
values are chosen. Trials are compared on held-out training classes, or on the test classes under the authors' protocol.
The sampler of trial N is seeded by N, so that an interrupted search continues as if it had not been.
"""

import fcntl
import importlib.util
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dml_jax.errors import ConfigError, UserError
from dml_jax.studies import outcomes, plan, runner
from dml_jax.studies.definition import Integers, Search, Uniform
from dml_jax.studies.plan import Settings, Trial
from dml_jax.studies.runner import Progress, Slot

SMOKE_TRIALS = 2
BEFORE_PRUNING = 5  # trials that are trained to the end before others are pruned


class Interrupted(BaseException):
    """Ends `study.optimize` and leaves the trial as it is, so that it is continued; optuna catches no BaseException."""


def library() -> Any:
    """The optuna package."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ConfigError("a search needs optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def database(optuna: Any, url: str) -> Any:
    """Optuna's storage at a URL, which closes a connection after each use."""
    from sqlalchemy.pool import NullPool  # optuna needs it

    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def open_storage(optuna: Any, url: str, name: str) -> Any:
    """The optuna study of that name, which is created if there is none."""
    try:
        return optuna.create_study(
            storage=database(optuna, url), study_name=name, direction="maximize", load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=BEFORE_PRUNING),
        )  # fmt: skip
    except Exception as error:  # each database has errors of its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"--storage={url}: cannot be used ({reason})") from None


def count_ended(url: str, name: str) -> int:
    """How many trials of a search have finished, were pruned or failed."""
    optuna = library()
    return sum(trial.state.is_finished() for trial in open_storage(optuna, url, name).get_trials(deepcopy=False))


@contextmanager
def one_at_a_time(root: Path) -> Iterator[IO[str]]:
    """Lets the workers of a search enter one at a time; closing the file lets the next one in earlier."""
    with open(root / "trials" / "search.lock", "w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        yield door


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
    config, given = plan.resolved(search.config, overrides, settings)
    name = f"trial-{number:04d}"
    given = tuple(key for key in given if key in settings.overrides)  # a search may try what has no effect
    return Trial(name, name, settings.seeds[0], settings.root / name, config, given=given, length=plan.length(config))


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


class Objective:
    """The function that `study.optimize` maximises: trains the run of a trial and returns its best evaluation.

    `door`, from `one_at_a_time`, is closed once the trial is claimed.
    """

    def __init__(
        self, optuna: Any, study: Any, search: Search, settings: Settings, metric: str, slot: Slot, progress: Progress,
        door: IO[str],
    ):  # fmt: skip
        self.optuna, self.study, self.search, self.settings, self.metric = optuna, study, search, settings, metric
        self.slot, self.progress, self.door = slot, progress, door
        self.split = "test" if settings.paper else "validation"
        self.lock: IO[str] | None = None

    def __call__(self, asked: Any) -> float:
        """The best evaluation; NaN, which is optuna's FAIL, without one.

        Raises Interrupted if the run is to be continued, TrialPruned if it fell behind the other trials.
        """
        root, name = self.settings.root, f"trial-{asked.number:04d}"
        parameters = suggested(asked, self.search)
        self.lock = runner.claim(root, name)
        self.door.close()
        if self.lock is None:
            raise Interrupted
        for other in self.study.get_trials(deepcopy=False, states=(self.optuna.trial.TrialState.COMPLETE,)):
            if other.params == parameters:  # the seed, and so the result, would be the same
                self.progress.print(f"{name}: has the values of trial-{other.number:04d}, and so its result")
                return float(other.value)
        try:
            trial = make_trial(self.search, self.settings, asked.number, parameters)
        except UserError as error:
            runner.problem_file(root, name).write_text(str(error), encoding="utf-8")
            self.progress.print(f"{name}: not possible: {error}")
            raise
        asked.set_user_attr("command", main_command(self.search, self.settings, parameters))
        return self._train(asked, trial, self.lock)

    def maximise(self) -> None:
        """Runs one trial, and keeps its claim until its result is stored."""
        try:
            with suppress(Interrupted):
                self.study.optimize(self, n_trials=1, catch=(UserError,))
        finally:
            if self.lock is not None:
                self.lock.close()

    def _train(self, asked: Any, trial: Trial, lock: IO[str]) -> float:
        seen = set(self.study.get_trials(deepcopy=False)[asked.number].intermediate_values)
        pruned = False

        def watch() -> bool:
            nonlocal pruned
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

        root, progress = self.settings.root, self.progress
        if outcomes.is_finished(trial) or runner.execute(root, trial, lock, self.slot, progress, watch, result):
            return best()
        if pruned:
            progress.print(f"{trial.name}: pruned after step {max(seen)}")
            raise self.optuna.TrialPruned
        if runner.problem_file(root, trial.name).exists():
            return float("nan")
        raise Interrupted


def run(
    name: str, search: Search, settings: Settings, metric: str, jobs: Sequence[Slot], storage: str,
    print_line: Callable[[str], None], *, wait: bool,
) -> int:  # fmt: skip
    """Trains the trials of a search that are missing; see `runner.run_all`. `storage` is the URL of optuna's."""
    optuna = library()
    total = SMOKE_TRIALS if settings.smoke else search.trials
    sampler(optuna, search, 0)
    with one_at_a_time(settings.root):  # two workers cannot create the same tables
        study = open_storage(optuna, storage, name)
    states = optuna.trial.TrialState
    trials = database(optuna, storage)
    identifier = trials.get_study_id_from_name(name)

    def job(slot: Slot, progress: Progress) -> None:
        while not progress.stop.is_set():
            with one_at_a_time(settings.root) as door:
                running = study.get_trials(deepcopy=False, states=(states.RUNNING,))
                for trial in running:
                    if not runner.is_running(settings.root, f"trial-{trial.number:04d}"):  # it was interrupted
                        number = trials.get_trial_id_from_study_id_trial_number(identifier, trial.number)
                        with suppress(optuna.exceptions.UpdateFinishedTrialError):
                            trials.set_trial_state_values(number, states.WAITING)  # which optuna takes first
                made = study.get_trials(deepcopy=False)
                if len(made) < total or any(trial.state == states.WAITING for trial in made):
                    study.sampler = sampler(optuna, search, len(made))
                    Objective(optuna, study, search, settings, metric, slot, progress, door).maximise()
                    continue
            if not (wait and running):
                return
            progress.stop.wait(runner.POLL)

    return runner.in_parallel(jobs, job, print_line)
