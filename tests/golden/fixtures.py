"""Reading the reference files: every npz of a family under $DML_JAX_GOLDEN, by pattern."""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.backbones.contract import Backbone
from dml_jax.config import Train
from dml_jax.methods.contract import Batch, Method
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


def compare(ours: Any, theirs: Any, note: str = "", **tolerance: float) -> None:
    """Two trees leaf by leaf; at the top level, `theirs` may have more keys than `ours`."""
    theirs = {key: theirs[key] for key in ours} if isinstance(ours, dict) else theirs
    assert jax.tree.structure(ours) == jax.tree.structure(theirs), note
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, **tolerance, err_msg=f"{note}{jax.tree_util.keystr(path)}")


def trained(
    method: Method,
    train: Train,
    start: tuple[Any, Any],
    batches: Iterable[Batch],
    rates: tuple[Any, np.ndarray],
    *,
    warmup: int = 0,
    milestones: Iterable[int] = (),
) -> Iterator[tuple[TrainState, dict[str, jax.Array]]]:
    """Makes the library's steps with its optimizer.

    Args:
      start: parameters and state of the method.
      batches: of all steps.
      rates: the learning rates of the groups, and what the authors had in each step.
      warmup: number of the first steps, before which no rate changes.

    Yields:
      state and terms after each step.
    """
    given = list(batches)
    schedule = optimizers.rate_factor(train, start=warmup, stop=len(given), milestones=tuple(milestones))
    optimizer = optimizers.build(train, method, schedule, warmup_steps=warmup)
    state, update = (
        TrainState(np.int32(0), *start, jax.jit(optimizer.init)(start[0])),
        jax.jit(step.build(method, optimizer)),
    )
    for t, batch in enumerate(given):
        np.testing.assert_allclose(np.multiply(rates[0], float(schedule(t))), rates[1][t], rtol=1e-6)
        state, terms = update(state, batch, jax.random.key(0))
        yield state, terms


def of_vectors(
    channels: int, layer: Callable[[Any, jax.Array], jax.Array] = lambda params, x: x, maps: bool = False
) -> Backbone:
    """A layer of parameters and vectors [B, n], whose results [B, channels] are feature maps of one
    position; or, of `maps`, themselves feature maps."""

    def apply(params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: Any) -> tuple[jax.Array, Any]:
        found = layer(params, inputs)
        return found if maps else found[:, None, None, :], stats

    return Backbone(init=lambda *_: ({}, {}), apply=apply, channels=channels, preprocess=lambda x: x)


# Weights of backbones are not stored in the files but drawn per key.


def draw(seed: int, key: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor by the rule of the files, with torch's axes, float64."""
    n = np.random.default_rng(zlib.crc32(f"{seed}:{key}".encode())).standard_normal(shape)
    if key.endswith("running_mean"):
        return 0.1 * n
    if key.endswith("running_var"):
        return 0.5 + np.abs(n)
    if len(shape) == 4:
        return n * np.sqrt(2 / (shape[1] * shape[2] * shape[3]))
    if len(shape) == 3:
        return 0.5 * n
    if len(shape) == 2:
        return n * np.sqrt(1 / shape[1])
    return 1 + 0.1 * n if key.endswith("weight") else 0.1 * n


def image(seed: int, tag: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random input images [B, 3, H, W] by the rule of the files."""
    return np.random.default_rng(zlib.crc32(f"{seed}:input:{tag}".encode())).standard_normal(shape)
