"""The model of a run on the hub, which replaces its checkpoints: a sealed directory `model/` with
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
    """Reads a model with the shapes of `template` into a state without optimizer state."""
    about = seal.read(directory, KIND, error=CheckpointError, remedy=REMEDY).about
    path = directory / FILE
    with reading(path, REMEDY, CheckpointError):
        step, arrays = np.int32(about["step"]), safetensors.numpy.load_file(path)
        workdir.check_same_facts(directory, about.get("run", {}), run)

    def find_array(name: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
        if 0 in like.shape:
            return np.zeros(like.shape, like.dtype)
        array = arrays.get("/".join(name))
        if array is None or (array.shape, array.dtype) != (like.shape, like.dtype):
            raise CheckpointError(f"{path}: does not fit this model ({'/'.join(name)}); {REMEDY}")
        return array

    templates = {"0": template.params, "1": template.model_state}
    variables = traverse_util.path_aware_map(find_array, templates)
    return TrainState(step, variables["0"], variables["1"], ())  # type: ignore[arg-type]
