"""The one model that a run on the hub has instead of checkpoints: `model/<step>.safetensors`.

Its metadata have the identity of the run and the SHA-256 of the arrays.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from flax import traverse_util
from pydantic import TypeAdapter

from dml_jax.errors import CheckpointError
from dml_jax.files import atomic_write, reading
from dml_jax.train import parameter_groups
from dml_jax.train.embedding import Variables
from dml_jax.train.records import workdir
from dml_jax.train.step import TrainState, digest

SUFFIX = ".safetensors"
MODEL = "model"  # directory
ABOUT = "dml_jax"  # the entry of the metadata


@dataclass
class _About:
    run: dict[str, Any]
    sha256: str


def write(directory: Path, state: Variables, run: Mapping[str, Any]) -> None:
    """Writes `<directory>/<step>.safetensors`."""
    leaves = traverse_util.flatten_dict({"0": state.params, "1": state.model_state}, sep="/")
    arrays = {name: np.asarray(leaf) for name, leaf in leaves.items() if leaf.size}
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(directory / f"{int(state.step)}{SUFFIX}") as draft:
        about = {"run": workdir.identity(run), "sha256": digest(arrays)}
        # One entry, because safetensors writes several in random order.
        draft.write_bytes(safetensors.numpy.save(arrays, {ABOUT: json.dumps(about)}))


def steps(directory: Path) -> list[int]:
    """Steps of the models in a directory, in increasing order."""
    names = (path.stem for path in directory.glob(f"*{SUFFIX}"))
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)  # fits int32


def read(directory: Path, step: int, template: Variables, run: Mapping[str, Any]) -> TrainState:
    """Reads a model in the shapes of a state or model, as a state without the optimizer's."""
    path = directory / f"{step}{SUFFIX}"
    with reading(path, "delete it", CheckpointError), safetensors.safe_open(path, "np") as file:
        about = TypeAdapter(_About).validate_json((file.metadata() or {}).get(ABOUT, "{}"))
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if about.sha256 != digest(arrays):
        raise CheckpointError(f"{path}: has changed since it was written; delete it")
    workdir.check_same_facts(path, about.run, run)

    def find(name: Any, wanted: jax.ShapeDtypeStruct) -> np.ndarray:
        if 0 in wanted.shape:
            return np.zeros(wanted.shape, wanted.dtype)
        found = arrays.get("/".join(name))
        if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise CheckpointError(f"{path}: does not fit this model ({'/'.join(name)}); delete it")
        return found

    params = jax.eval_shape(parameter_groups.merged, template.params)
    found = traverse_util.path_aware_map(find, {"0": params, "1": template.model_state})
    return TrainState(np.int32(step), found["0"], found["1"], ())  # type: ignore[arg-type]
