"""Parameter names and axis order of published torch weights.

Kernels of convolutions are [out, in, height, width] in torch and [height, width, in, out] in JAX; those of linear
layers are [out, in] and [in, out].
"""

import re
from collections.abc import Callable

import numpy as np

Path = tuple[str, ...]

_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


def _dotted(modules: str) -> str:
    """Indices as in torch's nn.Sequential: layer1_0 -> layer1.0."""
    return re.sub(r"_(\d+)", r".\1", modules)


def _resnet(modules: Path) -> str:
    joined = ".".join(modules)
    return _dotted(joined.replace("downsample_conv", "downsample.0").replace("downsample_bn", "downsample.1"))


def _bn_inception(modules: Path) -> str:
    return "_".join(modules)


def _googlenet(modules: Path) -> str:
    return _dotted(".".join(modules))


def _vit(modules: Path) -> str:
    joined = _dotted(".".join(modules)).replace("mlp_", "mlp.")
    return "patch_embed.proj" if joined == "patch_embed" else joined


def _mit(modules: Path) -> str:
    joined = re.sub(r"^stage(\d)_(patch_embed|norm)", r"\2\1", ".".join(modules))
    joined = re.sub(r"^stage(\d)_block(\d+)", r"block\1.\2", joined)
    return joined.replace("mlp.dwconv", "mlp.dwconv.dwconv")


def _efficientnet_lite(modules: Path) -> str:
    return ".".join(f"_{_dotted(name)}" for name in modules)


_MODULES: dict[str, Callable[[Path], str]] = {
    "resnet": _resnet,
    "bn_inception": _bn_inception,
    "efficientnet_lite": _efficientnet_lite,
    "googlenet": _googlenet,
    "deit": _vit,
    "vit": _vit,
    "mit": _mit,
}

# Torch names of the ImageNet classifiers, which are not part of the backbones.
CLASSIFIERS: dict[str, tuple[str, ...]] = {
    "resnet": ("fc",),
    "bn_inception": ("last_linear",),
    "efficientnet_lite": ("_fc",),
    "googlenet": ("fc",),
    "deit": ("head", "head_dist"),
    "vit": ("head",),
    "mit": ("head",),
}


def torch_name(architecture: str, path: Path) -> str:
    """Torch's name of a parameter or running statistic.

    Args:
      architecture: name of the backbone module, e.g. "resnet".
      path: of the leaf in `params` or `stats`, e.g. ("layer1_0", "conv1", "kernel").

    Returns:
      The name in torchvision (resnet, googlenet), in Cadene's pretrained-models.pytorch (bn_inception), in the package
      efficientnet_lite_pytorch, in timm (deit, vit) or in the SegFormer repository (mit).
    """
    modules = _MODULES[architecture](path[:-1])
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
