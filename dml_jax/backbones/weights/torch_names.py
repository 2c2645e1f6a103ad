"""The names published weights bear, and the order of their axes.

Torch keeps convolutions as [out, in, height, width] and linear layers as [out, in]; here they are
[height, width, in, out] and [in, out].
"""

import re
from collections.abc import Callable

import numpy as np

Path = tuple[str, ...]

_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


def _dotted(modules: str) -> str:
    """torchvision numbers the children of a sequence: layer1_0 -> layer1.0."""
    return re.sub(r"_(\d+)", r".\1", modules)


def _resnet(modules: Path) -> str:
    joined = ".".join(modules)
    return _dotted(joined.replace("downsample_conv", "downsample.0").replace("downsample_bn", "downsample.1"))


def _bn_inception(modules: Path) -> str:
    return "_".join(modules)


def _googlenet(modules: Path) -> str:
    return _dotted(".".join(modules))


def _deit(modules: Path) -> str:
    joined = _dotted(".".join(modules)).replace("mlp_", "mlp.")
    return "patch_embed.proj" if joined == "patch_embed" else joined


def _mit(modules: Path) -> str:
    joined = re.sub(r"^stage(\d)_(patch_embed|norm)", r"\2\1", ".".join(modules))
    joined = re.sub(r"^stage(\d)_block(\d+)", r"block\1.\2", joined)
    return joined.replace("mlp.dwconv", "mlp.dwconv.dwconv")


_MODULES: dict[str, Callable[[Path], str]] = {
    "resnet": _resnet,
    "bn_inception": _bn_inception,
    "googlenet": _googlenet,
    "deit": _deit,
    "mit": _mit,
}

# The ImageNet classifiers, left out of a backbone, under their torch names.
CLASSIFIERS: dict[str, tuple[str, ...]] = {
    "resnet": ("fc",),
    "bn_inception": ("last_linear",),
    "googlenet": ("fc",),
    "deit": ("head", "head_dist"),
    "mit": ("head",),
}


def torch_name(architecture: str, path: Path) -> str:
    """Torch's name of a parameter or running statistic.

    Args:
      architecture: a module of this package: "resnet", "bn_inception", "googlenet", "deit", "mit".
      path: of the leaf in `params` or `stats`, as "layer1_0", "conv1", "kernel".

    Returns:
      The name in the layout of torchvision (resnet, googlenet), of Cadene's collection (bn_inception), of timm (deit)
      or of SegFormer's authors (mit).
    """
    modules = _MODULES[architecture](path[:-1])
    leaf = _LEAVES.get(path[-1], path[-1])
    return f"{modules}.{leaf}" if modules else leaf


def from_torch(path: Path, tensor: np.ndarray) -> np.ndarray:
    """A tensor with its axes in our order; kernels by their rank, everything else as it is."""
    if path[-1] != "kernel":
        return tensor
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def torch_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one of our arrays in torch's order."""
    if path[-1] != "kernel":
        return shape
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]
