"""HIST: the search of its reproduction (Yuan et al., MLRC 2022, Tables 5 and 6), with Optuna's TPE.

    python -m benchmarks.papers.search_hist cars [--trials=60] [--protocol=paper]

DATA is one of SPACES. The reproduction trained about 200 settings per backbone (30 on SOP) for 60
epochs each, and compared them on the test classes (`--protocol=paper`). The values that it found
are the variants `retuned` of `configs/*_hist.py`.
"""

import sys
from typing import Any

import optuna

from benchmarks.papers import searching

S = (0.5, 0.8, 1.0, 1.2, 1.5)
SPACES: dict[str, tuple[tuple[float, ...], ...]] = {  # lambda_s, alpha, tau
    "cars": (S[:-1], (0.9, 0.95, 1.0, 1.1, 1.2), (16.0, 20.0, 24.0, 28.0, 32.0)),
    "cub": (S, (0.9, 0.95, 1.0, 1.05, 1.15), (16.0, 20.0, 24.0, 28.0, 32.0, 36.0)),
    "sop": (S, (1.9, 1.95, 2.0, 2.1, 2.15), (12.0, 14.0, 16.0, 20.0, 22.0, 24.0)),
    "cars-bn_inception": (S, (0.9, 0.95, 1.0, 1.1, 1.15), (16.0, 20.0, 22.0, 28.0, 32.0)),
    "cub-bn_inception": (S, (0.9, 0.95, 1.0, 1.05, 1.15), (16.0, 20.0, 24.0, 28.0, 32.0, 36.0)),
    "sop-bn_inception": (
        S,
        (1.5, 1.55, 1.6, 1.65, 1.7, 1.75),
        (12.0, 14.0, 16.0, 20.0, 22.0, 24.0),
    ),
    "omniglot": (S, (0.9, 0.95, 1.0, 1.1, 1.2), (2.5, 5.0, 10.0, 15.0, 20.0)),
}


def overrides(trial: optuna.Trial, data: str) -> dict[str, Any]:
    names = ("lambda_s", "alpha", "tau")
    space = {f"method.{name}": values for name, values in zip(names, SPACES[data], strict=True)}
    length = {"train.epochs": 60}
    if data == "omniglot":  # whose sampler needs a multiple of the images per class
        length = {}
    else:
        space["data.batch_size"] = (8, 16, 32)
    return {key: trial.suggest_categorical(key, values) for key, values in space.items()} | length


if __name__ == "__main__":
    sampler = optuna.samplers.TPESampler(multivariate=True)
    sys.exit(searching.main(__doc__, "hist", SPACES, overrides, sampler, trials=60))
