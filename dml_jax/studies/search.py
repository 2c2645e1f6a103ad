"""Searches for the values of options with optuna; many workers may share the storage and the directory.

A trial is an ordinary run, claimed as in `runner`; the storage holds the parameters and results from which the next
values are chosen. Trials are compared on held-out training classes, or on the test classes if the authors' protocol is
asked for. The sampler of trial N is seeded by N, so that an interrupted search continues as if it had not been.
"""

import fcntl
import importlib.util
import math
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dml_jax.errors import ConfigError, UserError
from dml_jax.studies import outcomes, plan, runner
from dml_jax.studies.definition import Integers, Search, Uniform
from dml_jax.studies.plan import Settings, Trial
from dml_jax.studies.runner import Progress, Slot

SMOKE_TRIALS = 2
BEFORE_PRUNING = 5  # trials that are trained to the end before others are pruned


def library() -> Any:
    """The optuna package.

    Raises:
      ConfigError: it is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ConfigError("a search needs optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_storage(optuna: Any, url: str, name: str) -> Any:
    """The optuna study of that name, which is created if there is none.

    Raises:
      ConfigError: the storage cannot be used.
    """
    from sqlalchemy.pool import NullPool  # optuna needs it; it closes a connection after each use

    try:
        return optuna.create_study(
            storage=optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool}),
            study_name=name, direction="maximize", load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=BEFORE_PRUNING),
        )  # fmt: skip
    except Exception as error:  # each database has errors of its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"--storage={url}: cannot be used ({reason})") from None


def count_ended(url: str, name: str) -> int:
    """How many trials of a search have finished, were pruned or failed.

    Raises:
      ConfigError: optuna is not installed, or the storage cannot be used.
    """
    optuna = library()
    running = optuna.trial.TrialState.RUNNING
    trials = open_storage(optuna, url, name).get_trials(deepcopy=False)
    return sum(trial.state != running for trial in trials)


@contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Lets one worker of a search enter after the other."""
    with open(root / "trials" / "search.lock", "w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        yield


def distributions(optuna: Any, search: Search) -> dict[str, Any]:
    """The space of a search for optuna.

    Raises:
      ConfigError: it is empty, or a parameter has no choices.
    """
    if not search.space or search.trials < 1:
        raise ConfigError(f"search of {search.config}: has no parameters or no trials")
    found: dict[str, Any] = {}
    for name, values in search.space.items():
        match values:
            case Uniform(low, high, log):
                found[name] = optuna.distributions.FloatDistribution(low, high, log=log)
            case Integers(low, high):
                found[name] = optuna.distributions.IntDistribution(low, high)
            case _ if values:
                found[name] = optuna.distributions.CategoricalDistribution(values)
            case _:
                raise ConfigError(f"search of {search.config}: {name} has no choices; give some")
    return found


def sampler(optuna: Any, search: Search, number: int) -> Any:
    """The sampler that chooses the values of a trial, seeded by its number.

    Raises:
      ConfigError: a package is missing that it needs.
    """
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
    """The trial with given values.

    Raises:
      ConfigError: the values do not fit together, or an option of the search is overridden.
    """
    overrides = {key: plan.as_text(value) for key, value in search.overrides(parameters).items()}
    if not settings.paper:
        share = str(search.validation_share)
        overrides |= {"data.validation_share": share, "train.select": "validation"}
    overrides |= {"seed": str(settings.seeds[0])}
    for key in overrides.keys() & settings.overrides.keys():
        raise ConfigError(f"--config.{key}: the search sets it; leave it out, or change it in the file of the search")
    config = plan.resolved(search.config, overrides, settings)
    name = f"trial-{number:04d}"
    return Trial(name, name, settings.seeds[0], settings.root / name, config)


def example(search: Search) -> dict[str, Any]:
    """Values of the parameters with which a configuration can be checked: the first choices and the lower bounds."""
    return {name: values[0] if isinstance(values, tuple) else values.low for name, values in search.space.items()}


def main_command(search: Search, settings: Settings, parameters: Mapping[str, Any]) -> str:
    """The command that trains with given values, seed and protocol on all training classes."""
    overrides = {key: plan.as_text(value) for key, value in search.overrides(parameters).items() if key != "seed"}
    overrides |= {"seed": str(settings.seeds[0])} if settings.seeds[0] else {}
    path, overrides = plan.in_protocol(search.config, overrides, settings)
    options = [f"--config.{key}={text}" for key, text in overrides.items()]
    return shlex.join(["python", "-m", "dml_jax.main", f"--config={path}", *options])


class Worker:
    """Takes and makes trials until their number is reached.

    Args:
      optuna: the package.
      study: of optuna.
      search: what is searched.
      settings: of the command line.
      metric: the objective.
      total: number of trials.
      wait: whether to wait for trials of other workers.
    """

    def __init__(
        self, optuna: Any, study: Any, search: Search, settings: Settings, metric: str, total: int, *, wait: bool
    ):
        self.optuna, self.study, self.search, self.settings = optuna, study, search, settings
        self.metric, self.total, self.wait = metric, total, wait
        self.split = "test" if settings.paper else "validation"
        self.space = distributions(optuna, search)

    def __call__(self, slot: Slot, progress: Progress) -> None:
        """Runs trials one after the other."""
        while not progress.stop.is_set():
            claimed = self._claim()
            if claimed is not None:
                number, lock = claimed
                with lock:
                    self._run(number, lock, slot, progress)
            elif self.wait and self._count(self.optuna.trial.TrialState.RUNNING):
                progress.stop.wait(runner.POLL)
            else:
                return

    def _count(self, *states: Any) -> int:
        return len(self.study.get_trials(deepcopy=False, states=states or None))

    def _claim(self) -> tuple[int, IO[str]] | None:
        """An interrupted or a new trial; one worker at a time."""
        root = self.settings.root
        with one_at_a_time(root):
            running = (self.optuna.trial.TrialState.RUNNING,)
            for frozen in self.study.get_trials(deepcopy=False, states=running):
                if lock := runner.claim(root, f"trial-{frozen.number:04d}"):
                    return frozen.number, lock
            if self._count() >= self.total:
                return None
            self.study.sampler = sampler(self.optuna, self.search, self._count())
            number: int = self.study.ask(self.space).number
            lock = runner.claim(root, f"trial-{number:04d}")
            return (number, lock) if lock else None

    def _run(self, number: int, lock: IO[str], slot: Slot, progress: Progress) -> None:
        frozen = self.study.get_trials(deepcopy=False)[number]
        states = self.optuna.trial.TrialState
        if frozen.state != states.RUNNING:  # ended between the listing and the claim
            return
        root, name = self.settings.root, f"trial-{number:04d}"
        for other in self.study.get_trials(deepcopy=False, states=(states.COMPLETE,)):
            if other.params == frozen.params:  # the seed, and so the result, would be the same
                progress.print(f"{name}: has the values of trial-{other.number:04d}, and so its result")
                self.study.tell(number, other.value)
                return
        handle = self.optuna.trial.Trial(self.study, frozen._trial_id)
        try:
            trial = make_trial(self.search, self.settings, number, frozen.params)
        except UserError as error:
            runner.problem_file(root, name).write_text(str(error), encoding="utf-8")
            progress.print(f"{name}: not possible: {error}")
            self.study.tell(number, state=states.FAIL)
            return
        handle.set_user_attr("command", main_command(self.search, self.settings, frozen.params))
        seen = set(frozen.intermediate_values)
        pruned = False

        def watch() -> bool:
            nonlocal pruned
            for step, value in outcomes.evaluations(trial.directory, self.split, self.metric):
                if step not in seen:
                    handle.report(value, step)
                    seen.add(step)
            pruned = pruned or (bool(seen) and handle.should_prune())
            return pruned

        def best() -> float:
            points = outcomes.evaluations(trial.directory, self.split, self.metric)
            return max((value for _, value in points), default=float("nan"))

        def result() -> str:  # of the test classes only if the search is allowed to see them
            return f"{self.metric} {best():.4f} on the {self.split} classes"

        finished = outcomes.is_finished(trial) or runner.execute(root, trial, lock, slot, progress, watch, result)
        if finished and not math.isnan(best()):
            self.study.tell(number, best())
        elif pruned:
            progress.print(f"{name}: pruned after step {max(seen)}")
            self.study.tell(number, state=states.PRUNED)
        elif finished or runner.problem_file(root, name).exists():  # otherwise it was interrupted
            self.study.tell(number, state=states.FAIL)


def run(
    name: str, search: Search, settings: Settings, metric: str, jobs: Sequence[Slot], storage: str,
    print_line: Callable[[str], None], *, wait: bool,
) -> int:  # fmt: skip
    """Trains the trials of a search that are missing; returns 0, or 128 + the number of the signal that stopped it.

    Args:
      name: of the study.
      search: what is searched.
      settings: of the command line.
      metric: the objective.
      jobs: see `runner.slots`.
      storage: URL of optuna's storage.
      print_line: shows a line.
      wait: whether to wait for trials of other workers.

    Raises:
      UserError: a package is missing, or the storage cannot be used.
    """
    optuna = library()
    total = SMOKE_TRIALS if settings.smoke else search.trials
    sampler(optuna, search, 0)
    with one_at_a_time(settings.root):  # two workers cannot create the same tables
        study = open_storage(optuna, storage, name)
    return runner.in_parallel(jobs, Worker(optuna, study, search, settings, metric, total, wait=wait), print_line)
