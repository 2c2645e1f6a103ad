"""The one model that a run on the hub has instead of checkpoints: a sealed `model/` with
`model.safetensors`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from flax import traverse_util

from dml_jax import seal
from dml_jax.errors import CheckpointError
from dml_jax.files import reading
from dml_jax.train.embedding import Variables
from dml_jax.train.records import workdir
from dml_jax.train.step import TrainState

DIRECTORY, FILE, KIND = "model", "model.safetensors", "model"
REMEDY = "download it again"


def write(directory: Path, state: Variables, run: Mapping[str, Any]) -> None:
    """Writes the model of a run."""
    leaves = traverse_util.flatten_dict({"0": state.params, "1": state.model_state}, sep="/")
    arrays = {name: np.asarray(leaf) for name, leaf in leaves.items() if leaf.size}
    about = {"run": workdir.identity(run), "step": int(state.step)}
    with seal.write(directory, KIND, about=about) as draft:
        (draft / FILE).write_bytes(safetensors.numpy.save(arrays))


def read(directory: Path, template: Variables, run: Mapping[str, Any]) -> TrainState:
    """Reads a model in the shapes of a state or model, as a state without the optimizer's."""
    about = seal.read(directory, KIND, error=CheckpointError, remedy=REMEDY).about
    path = directory / FILE
    with reading(path, REMEDY, CheckpointError):
        step, arrays = np.int32(about["step"]), safetensors.numpy.load_file(path)
        workdir.check_same_facts(directory, about.get("run", {}), run)

    def find(name: Any, wanted: jax.ShapeDtypeStruct) -> np.ndarray:
        if 0 in wanted.shape:
            return np.zeros(wanted.shape, wanted.dtype)
        found = arrays.get("/".join(name))
        if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise CheckpointError(f"{path}: does not fit this model ({'/'.join(name)}); {REMEDY}")
        return found

    found = traverse_util.path_aware_map(find, {"0": template.params, "1": template.model_state})
    return TrainState(step, found["0"], found["1"], ())  # type: ignore[arg-type]
