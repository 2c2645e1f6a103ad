"""MPN: the authors' random search ([Re] Learning Intra-Batch Connections, Table 1, last column).

    python -m benchmarks.papers.search_re_mpn cub [--trials=30] [--protocol=paper]

The authors trained 30 settings for 40 epochs each and compared them on the test classes
(`--protocol=paper`). Their code samples the number of layers but does not use it.
`configs/*_mpn.py` have the values that they found.
"""

import sys
from typing import Any

import optuna

from benchmarks.papers import searching

DATA = ("cub", "cars", "sop", "inshop", "omniglot")


def overrides(trial: optuna.Trial, data: str) -> dict[str, Any]:
    rates = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-15, 1e-6, log=True),
    }
    images = trial.suggest_int("images", 3, 9)
    return (
        {
            f"train.groups.{group}.{key}": value
            for group in ("backbone", "embedding", "auxiliary", "mpn")
            for key, value in rates.items()
        }
        | {
            "data.sampler": "chunks",
            "data.images_per_class": images,
            "data.batch_size": images * trial.suggest_int("classes", 6, 15),
            "method.temperature": trial.suggest_float("temperature", 0.01, 1.0),
            "method.layers": trial.suggest_int("layers", 1, 4),
            "method.heads": trial.suggest_categorical("heads", (1, 2, 4, 8)),
        }
        | ({} if data == "omniglot" else {"train.epochs": 40})
    )


if __name__ == "__main__":
    sampler = optuna.samplers.RandomSampler()
    sys.exit(searching.main(__doc__, "mpn", DATA, overrides, sampler, trials=30))
