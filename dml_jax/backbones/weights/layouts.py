"""Names, shapes and axes of published weights: what a backbone module declares for `dml-jax convert`.

PUBLISHED        the published networks by name: dict[str, Config]
LAYOUTS          the names that libraries and authors give its tensors: list[Layout]
CLASSIFIERS      torch names of the ImageNet classifiers, which are not part of the backbone
torch_module     path of a module in `params` -> its torch name, in the layout without rules
UNSEEN           optional: options that change its features but not the shapes of its weights
"""

import math
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from dml_jax.backbones.contract import Config
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.modules import module

Shape = tuple[int, ...]
Rule = tuple[str, str | Callable[[re.Match[str]], str]]  # pattern of a tensor's name, and its replacement

_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


class Network(NamedTuple):
    """A network that tensors belong to."""

    config: Config
    side: int = 224  # of images in pixels, for which positions were learned or the accuracy was published
    crop_fraction: float = 0.875  # of the resized image's side, with which the accuracy was measured
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"  # of that resizing


class Layout(NamedTuple):
    """The names that a library or the authors of a network give its tensors.

    `read` derives the network from the renamed tensors. It should look at one-dimensional ones, so that a transposed
    kernel does not lead to a wrong configuration but is reported as a wrong shape. Tensors that the rules rename to
    `name@0.leaf`, `name@1.leaf`, … are concatenated.
    """

    library: str  # for messages
    marker: str  # a tensor that identifies the layout
    read: Callable[[StateDict], Network]
    rules: tuple[Rule, ...] = ()  # from the names to those of `torch_module`, in order


def count(tensors: StateDict, name: Callable[[int], str]) -> int:
    """How many of the numbered tensors name(0), name(1), … there are."""
    return next(n for n in range(len(tensors) + 1) if name(n) not in tensors)


def length(tensors: StateDict, name: str) -> int:
    """Number of elements of a tensor, at least 1."""
    return max(1, math.prod(tensors[name].shape))


def patch_side(tensors: StateDict) -> int:
    """Side in pixels of the patches of a vision transformer; 16 if it is unknown, to be reported as a wrong shape."""
    kernel = tensors.get("patch_embed.proj.weight")
    return kernel.shape[-1] if kernel is not None and kernel.shape else 16


def numbered(template: str) -> Callable[[re.Match[str]], str]:
    """`template` with the first group plus one: Hugging Face counts from 0 where the authors count from 1."""
    return lambda match: template.format(int(match[1]) + 1)


def dotted(modules: str) -> str:
    """Indices as in torch's nn.Sequential: layer1_0 -> layer1.0."""
    return re.sub(r"_(\d+)", r".\1", modules)


def torch_name(architecture: str, path: tuple[str, ...]) -> str:
    """The name of a leaf of `params` or `stats`, e.g. ("layer1_0", "conv1", "kernel"), in `torch_module`'s library."""
    modules = module("backbone", architecture).torch_module(path[:-1])
    leaf = _LEAVES.get(path[-1], path[-1])
    return f"{modules}.{leaf}" if modules else leaf


# Kernels of convolutions are [out, in, height, width] in torch and [height, width, in, out] in JAX; those of linear
# layers are [out, in] and [in, out].


def to_jax_axes(path: tuple[str, ...], tensor: np.ndarray) -> np.ndarray:
    """A torch tensor with its axes in JAX order; only kernels differ."""
    if path[-1] != "kernel":
        return tensor
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def torch_shape(path: tuple[str, ...], shape: Shape) -> Shape:
    """The shape in torch's axis order of an array with this shape in JAX order."""
    if path[-1] != "kernel":
        return shape
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]
