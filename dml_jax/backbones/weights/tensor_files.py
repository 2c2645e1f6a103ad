"""Reading safetensors and torch files lazily: names and shapes at once, each tensor on demand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors

from dml_jax.backbones.weights import torch_file
from dml_jax.errors import WeightsError
from dml_jax.files import reading

DTYPES = ("F32", "F16", "BF16", "F64", "BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64")  # of safetensors


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file: its shape, and a function that reads it as float32 (integers and booleans unchanged)."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def concatenate(parts: list[Tensor]) -> Tensor:
    """The parts concatenated along their first axis."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return Tensor(shape, lambda: np.concatenate([part.read() for part in parts]))


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file by name.

    Raises:
      WeightsError: the file is missing, truncated, in another format, or refers to anything but tensors.
    """
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file")
    with path.open("rb") as file:
        head = file.read(64)
    # A safetensors file starts with the length of its header (8 bytes), and the header with a brace.
    if head[8:9] == b"{":
        return _safetensors(path)
    return {
        name: Tensor(view.shape, lambda view=view: _to_float32(view.read()))  # type: ignore[misc]
        for name, view in torch_file.read(path).items()
    }


def read_finite(tensors: Mapping[str, Tensor], source: str) -> dict[str, np.ndarray]:
    """Reads tensors as float32 arrays; raises WeightsError if one contains NaN or infinity."""
    arrays = {}
    for name, tensor in tensors.items():
        array = tensor.read()
        if not np.isfinite(array).all():
            raise WeightsError(f"{source}: {name} contains NaN or infinity")
        arrays[name] = np.ascontiguousarray(array, np.float32)
    return arrays


def _to_float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.kind not in "iub" else array


def _safetensors(path: Path) -> dict[str, Tensor]:
    shapes = {}
    with reading(path, "download it again", WeightsError):
        file = safetensors.safe_open(path, framework="numpy")
        for name in file.keys():  # noqa: SIM118  # it is not a mapping
            tensor = file.get_slice(name)
            if tensor.get_dtype() not in DTYPES:
                raise WeightsError(f"{name} holds {tensor.get_dtype()}; convert it to {' or '.join(DTYPES[:4])}")
            shapes[name] = tuple(tensor.get_shape())

    def reader(name: str) -> Callable[[], np.ndarray]:
        return lambda: _to_float32(file.get_tensor(name))

    return {name: Tensor(shape, reader(name)) for name, shape in shapes.items()}
