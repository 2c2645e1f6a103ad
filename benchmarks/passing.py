"""How far an object travels: calls, functions and files of the package that get it as an argument.

    python -m benchmarks.passing

Trains, evaluates and exports a few steps on the built-in digits, embeds images with the model, and
evaluates embeddings, each under `sys.setprofile`. It follows the configuration of the run with its
sections, an image on its way to an embedding, and labels on their way to a metric. The figures show
how much code has to be read to follow one thing.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

import dml_jax
from dml_jax import evaluation, run
from dml_jax.console import Console
from dml_jax.train.distributed.stop_signals import Stop
from tests.train import experiments

PACKAGE = Path(dml_jax.__file__).parent


def followed(body: Callable[[], object], is_followed: Callable[[Any], bool]) -> tuple[int, ...]:
    """(calls, functions, files) of the package that get such an object while `body` runs."""
    functions: Counter[tuple[str, str]] = Counter()

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(is_followed(frame.f_locals.get(name)) for name in names):
                functions[code.co_filename, code.co_qualname] += 1

    sys.setprofile(look)
    try:
        body()
    finally:
        sys.setprofile(None)
    return functions.total(), len(functions), len({file for file, _ in functions})


def main() -> None:
    """Prints a table."""
    config = experiments.small(steps=4)
    kinds = tuple({type(part) for part in (config, *vars(config).values()) if is_dataclass(part)})
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    rows, labels = np.eye(8, dtype=np.float32), np.arange(8) % 2
    quiet = Console(quiet=True, active=False)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        directory = Path(folder) / "run"
        jax.config.update("jax_platforms", "cpu")
        found = {
            "configuration": followed(
                lambda: run.train(config, directory, quiet, Stop()),
                lambda value: isinstance(value, kinds),
            )
        }
        model: Any = dml_jax.load(directory, runtime="jax")
        found["image"] = followed(
            lambda: model.embed([image, image]),
            lambda value: isinstance(value, np.ndarray) and value.shape[-3:] == image.shape,
        )
    found["labels"] = followed(
        lambda: evaluation.retrieval(rows, labels, ks=(1,)),
        lambda value: isinstance(value, np.ndarray) and value.shape == labels.shape,
    )
    print("| followed | calls | functions | files |\n|---|--:|--:|--:|")
    for name, (calls, functions, files) in found.items():
        print(f"| {name} | {calls} | {functions} | {files} |")


if __name__ == "__main__":
    main()
