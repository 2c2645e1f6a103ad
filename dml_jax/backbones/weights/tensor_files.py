"""Reading files of weights lazily: names and shapes at once, one tensor at a time afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors

from dml_jax.backbones.weights import torch_file
from dml_jax.errors import WeightsError


@dataclass(frozen=True)
class Tensor:
    """A tensor still in its file: its shape, and what reads it as float32 (integers as they are)."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def joined(parts: list[Tensor]) -> Tensor:
    """Tensors stacked along their first axis."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return Tensor(shape, lambda: np.concatenate([part.read() for part in parts]))


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file under their names there.

    Raises:
      WeightsError: the file is missing, truncated, of another kind, or would need code to be run.
    """
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file")
    with path.open("rb") as file:
        head = file.read(64)
    # A safetensors file begins with the length of its header, 8 bytes, and the header with a brace.
    if head[8:9] == b"{":
        return _safetensors(path)
    return {
        name: Tensor(view.shape, lambda view=view: _wide(view.read()))  # type: ignore[misc]
        for name, view in torch_file.read(path).items()
    }


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.kind not in "iub" else array


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        file = safetensors.safe_open(path, framework="numpy")
        names = file.keys()
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error}); fetch it again") from None

    def reader(name: str) -> Callable[[], np.ndarray]:
        return lambda: _wide(file.get_tensor(name))

    return {name: Tensor(shape, reader(name)) for name, shape in shapes.items()}
