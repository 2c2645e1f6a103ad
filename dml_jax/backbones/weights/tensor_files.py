"""The tensors of safetensors and torch files as NumPy arrays; nothing in a file is executed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from dml_jax.backbones.weights import packaged
from dml_jax.errors import WeightsError
from dml_jax.files import reading, sha256

StateDict = dict[str, np.ndarray]

DTYPES = ("F32", "F16", "BF16", "F64", "BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64")  # of safetensors
CONTAINERS = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights
# What published checkpoints hold beside the weights: DiVA's the options of the run and its curves.
UNUSED = (
    *("argparse.Namespace", "utilities.logger.Progress_Saver", "numpy.dtype", "_codecs.encode"),
    *("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
)


def read(path: Path) -> StateDict:
    """The tensors of a file by name; WeightsError if it is missing or damaged, or refers to anything but tensors.

    The files of `packaged.PACKAGES` are read without torch, other torch files with it.
    """
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file")
    with reading(path, "download it again", WeightsError):
        with path.open("rb") as file:
            head = file.read(9)
        # A safetensors file starts with the length of its header (8 bytes), and the header with a brace.
        if head[8:] == b"{":
            return _safetensors(path)
        if head[:4] != b"PK\3\4" and head[:1] != b"\x80":
            raise WeightsError("is neither safetensors nor a torch file; download it again")
        if sha256(path) in packaged.DIGESTS:
            return packaged.read(path)
        return _torch(path)


def finite(tensors: Mapping[str, np.ndarray], source: str) -> StateDict:
    """Tensors as contiguous float32 arrays; raises WeightsError if one contains NaN or infinity."""
    with np.errstate(over="ignore"):
        arrays = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise WeightsError(f"{source}: {name} contains NaN or infinity")
    return arrays


def _safetensors(path: Path) -> StateDict:
    file = safetensors.safe_open(path, framework="numpy")
    names = list(file.keys())
    for name in names:
        if (kind := file.get_slice(name).get_dtype()) not in DTYPES:
            raise WeightsError(f"{name} holds {kind}; convert it to {' or '.join(DTYPES[:4])}")
    return {name: file.get_tensor(name) for name in names}


class _Unused:
    """Stands for an object that is not needed."""

    def __new__(cls, *arguments: Any) -> "_Unused":
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


def _torch(path: Path) -> StateDict:
    try:
        import torch
    except ModuleNotFoundError:
        raise WeightsError("needs torch: pip install 'dml_jax[torch]', or give a .safetensors file") from None
    with torch.serialization.safe_globals([(_Unused, name) for name in UNUSED]):
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # of many types; the messages of torch propose to execute the file
            if name := re.search(r"GLOBAL ([\w.]*\w) ", str(error)):
                raise WeightsError(f"refers to {name[1]}, which is never executed; save only the state_dict") from None
            raise WeightsError("is truncated or damaged; download it again") from error
    for inner in (found, *(found.get(name) for name in CONTAINERS if isinstance(found, dict))):
        if isinstance(inner, dict):
            tensors = {name: tensor for name, tensor in inner.items() if isinstance(tensor, torch.Tensor)}
            if tensors:
                return {name: _to_numpy(tensor.detach()) for name, tensor in tensors.items()}
    raise WeightsError(f"contains no state_dict, neither at the top level nor under {', '.join(CONTAINERS)}")


def _to_numpy(tensor: Any) -> np.ndarray:
    array: np.ndarray = (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # NumPy has no bfloat16
    return array
