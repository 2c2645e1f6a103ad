"""Random state_dicts with torch's names and axes."""

from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.weights.convert import torch_name

StateDict = dict[str, np.ndarray]


def to_torch(path: tuple[str, ...], array: np.ndarray) -> np.ndarray:
    """A JAX array (parameter or gradient) with its axes in torch's order."""
    if path[-1] != "kernel":
        return array
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def random_state_dict(backbone: Backbone, architecture: str, seed: int = 0, side: int = 64) -> StateDict:
    """A random state_dict of a backbone, including counters."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: backbone.init(jax.random.key(0), (side, side)))
    found: StateDict = {}
    for tree in shapes:
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            keys = tuple(p.key for p in path)
            name = torch_name(architecture, keys)
            array = rng.standard_normal(leaf.shape).astype(np.float32)
            found[name] = to_torch(keys, np.abs(array) + 0.5 if name.endswith("running_var") else array)
            if name.endswith("running_mean"):
                found[name.replace("running_mean", "num_batches_tracked")] = np.array(7, np.int64)
    return found


def write(path: Path, tensors: StateDict) -> Path:
    """Writes a safetensors file."""
    safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
    return path
