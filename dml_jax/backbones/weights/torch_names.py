"""Parameter names and axis order of published torch weights.

Kernels of convolutions are [out, in, height, width] in torch and [height, width, in, out] in JAX; those of linear
layers are [out, in] and [in, out].
"""

import numpy as np

from dml_jax.config.modules import module

Path = tuple[str, ...]

_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


def torch_name(architecture: str, path: Path) -> str:
    """The name of a leaf of `params` or `stats`, e.g. ("layer1_0", "conv1", "kernel"), in `torch_module`'s library."""
    modules = module("backbone", architecture).torch_module(path[:-1])
    leaf = _LEAVES.get(path[-1], path[-1])
    return f"{modules}.{leaf}" if modules else leaf


def to_jax_axes(path: Path, tensor: np.ndarray) -> np.ndarray:
    """A torch tensor with its axes in JAX order; only kernels differ."""
    if path[-1] != "kernel":
        return tensor
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def torch_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in torch's axis order of an array with this shape in JAX order."""
    if path[-1] != "kernel":
        return shape
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]
