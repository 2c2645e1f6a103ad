"""Reading the reference files: every npz of a family under $DML_JAX_GOLDEN, by pattern."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.backbones.contract import Backbone
from dml_jax.config import Train
from dml_jax.methods.contract import Method
from dml_jax.train import optimizers, step
from dml_jax.train.step import TrainState
from tests.papers import PAPERS

ROOT = Path(os.environ.get("DML_JAX_GOLDEN", Path(__file__).parent / "data")).expanduser()
FAMILIES = ("backbones", "metrics", "transforms", *PAPERS)
if not any((ROOT / family).is_dir() for family in FAMILIES):
    raise FileNotFoundError(f"DML_JAX_GOLDEN={ROOT}: holds none of {', '.join(FAMILIES)}")


def names(family: str, pattern: str = "*") -> list[str]:
    """File names (no ending) of one family; empty where the family has no directory."""
    return sorted(path.stem for path in (ROOT / family).glob(f"{pattern}.npz"))


@cache
def load(family: str, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and `meta` of one file; read-only, as tests share them."""
    with np.load(ROOT / family / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads(str(arrays.pop("meta")))


def cast(z: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Arrays of float64 in another type."""
    return {k: array.astype(dtype) if array.dtype == float else array for k, array in z.items()}


def torch_layer(z: dict[str, np.ndarray], *names: str, separator: str = ".") -> dict[str, Any]:
    """Torch's weights [out, in] of linear layers, side by side, as one kernel [in, out]."""
    layer = {"kernel": np.concatenate([z[f"{n}{separator}weight"].T for n in names], axis=1)}
    if f"{names[0]}{separator}bias" in z:
        layer["bias"] = np.concatenate([z[f"{name}{separator}bias"] for name in names])
    return layer


def training(
    method: Method,
    train: Train,
    params: Any,
    model_state: Any,
    *,
    start: int = 0,
    milestones: tuple[int, ...] = (),
    steps: int | None = None,
) -> tuple[Any, TrainState, Any]:
    """(schedule, state, step) of a run with the library's step and optimizer; the warm-up takes
    the first `start` steps."""
    schedule = optimizers.rate_factor(train, start=start, stop=steps or train.steps, milestones=milestones)
    optimizer = optimizers.build(train, method, schedule, warmup_steps=start)
    state = TrainState(np.int32(0), params, model_state, jax.jit(optimizer.init)(params))
    return schedule, state, jax.jit(step.build(method, optimizer))


def of_vectors(
    channels: int, layer: Callable[[Any, jax.Array], jax.Array] = lambda params, x: x, maps: bool = False
) -> Backbone:
    """A layer of parameters and vectors [B, n], whose results [B, channels] are feature maps of one
    position; or, of `maps`, themselves feature maps."""

    def apply(params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: Any) -> tuple[jax.Array, Any]:
        found = layer(params, inputs)
        return found if maps else found[:, None, None, :], stats

    return Backbone(init=lambda *_: ({}, {}), apply=apply, channels=channels, preprocess=lambda x: x)
