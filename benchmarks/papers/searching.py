"""Searches for values of options with Optuna, for the papers that did so.

Trials are compared on 20 % of the training classes, held out; with `--protocol=paper`, on the test
classes. All are kept in `search.db` below the root, which Optuna's dashboard reads, and the same
command adds the missing ones. A trial that diverged or was interrupted counts as one.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import optuna

from dml_jax import run
from dml_jax.commands import cli
from dml_jax.config.files import resolved
from dml_jax.console import Console
from dml_jax.errors import DivergedError, require
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.records.logs import JsonLines

HELD_OUT = {"data.validation_share": 0.2, "train.select": "validation"}


def main(
    about: str | None,
    method: str,
    known: Collection[str],
    overrides: Callable[[optuna.Trial, str], Mapping[str, Any]],
    sampler: optuna.samplers.BaseSampler,
    trials: int,
) -> int:
    """Reads the command line and searches; `overrides` suggests those of a trial on the data."""

    def search() -> None:
        flags = cli.Parser(about)
        flags.add_argument("data", choices=known)
        flags.add_argument("--trials", type=int, default=trials)
        flags.add_argument("--protocol", choices=("clean", "paper"), default="clean")
        flags.add_argument("--root", type=Path, help="default: runs/searches/DATA_METHOD")
        options, typed = flags.read(sys.argv[1:])
        data, _, variant = options.data.partition("-")
        root = options.root or Path("runs/searches") / f"{options.data}_{method}"
        on_test = options.protocol == "paper"

        def value(trial: optuna.Trial) -> float:
            given = {**({} if on_test else HELD_OUT), **overrides(trial, options.data), **typed}
            file = f"configs/{data}_{method}.py" + (f":{variant}" if variant else "")
            config = resolved(file, given, protocol=options.protocol, typed=typed)
            directory = root / f"trial-{trial.number:04d}"
            with Stop() as stop:
                run.train(config, directory, Console(quiet=True), stop)
            key = f"{'test' if on_test else 'validation'}/recall@1"
            lines = JsonLines(directory / "metrics.jsonl").read()
            return max(line[key] for line in lines if line.get(key) is not None)

        root.mkdir(parents=True, exist_ok=True)
        study = optuna.create_study(
            storage=f"sqlite:///{root.resolve() / 'search.db'}",
            study_name=f"{options.data}_{method}",
            sampler=sampler,
            direction="maximize",
            load_if_exists=True,
        )
        missing = options.trials - len(study.trials)
        study.optimize(value, n_trials=max(missing, 0), catch=DivergedError)
        done = [trial for trial in study.trials if trial.value is not None]
        require(done, f"{root}: no trial was trained to its end")
        best = study.best_trial
        print(f"trial-{best.number:04d}: recall@1 {best.value:.4f} {best.params}")

    return cli.exit_code(search)
