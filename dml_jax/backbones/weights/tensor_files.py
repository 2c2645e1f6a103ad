"""Downloads and reads published weights as NumPy arrays by name; executes nothing in a file."""

import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from dml_jax.backbones.weights import converted
from dml_jax.errors import WeightsError
from dml_jax.files import expand_path, reading, sha256
from dml_jax.remote import hub

StateDict = dict[str, np.ndarray]

CONTAINERS = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights
# What published checkpoints contain besides weights, e.g. the options of the run and its curves.
UNUSED = (
    *("argparse.Namespace", "utilities.logger.Progress_Saver", "numpy.dtype", "_codecs.encode"),
    *("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
)


def read(path: Path) -> StateDict:
    """The tensors of a file by name; WeightsError if it is damaged or refers to other objects.

    The files of `converted.PACKAGES` are read without torch, other torch files with it.
    """
    with reading(path, "download it again", WeightsError):
        with path.open("rb") as file:
            head = file.read(9)
        # A safetensors file starts with the length of its header (8 bytes) and a brace.
        if head[8:] == b"{":
            return safetensors.numpy.load_file(path)
        if head[:4] != b"PK\3\4" and head[:1] != b"\x80":
            raise WeightsError("is neither safetensors nor a torch file; download it again")
        if sha256(path) in converted.PACKAGES.values():
            return read_packaged(path)
        return _torch(path)


def finite(tensors: Mapping[str, np.ndarray], source: str) -> StateDict:
    """Tensors as contiguous float32 arrays; raises WeightsError if one contains NaN or infinity."""
    with np.errstate(over="ignore"):
        arrays = {name: np.ascontiguousarray(x, np.float32) for name, x in tensors.items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise WeightsError(f"{source}: {name} contains NaN or infinity")
    return arrays


class _Unused:
    """Placeholder for an object that is not needed."""

    def __new__(cls, *arguments: Any) -> "_Unused":
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


def _torch(path: Path) -> StateDict:
    try:
        import torch
    except ModuleNotFoundError:
        remedy = "pip install 'dml_jax[torch]', or give a .safetensors file"
        raise WeightsError(f"needs torch: {remedy}") from None

    def array(tensor: torch.Tensor) -> np.ndarray:
        wide = tensor.float() if tensor.is_floating_point() else tensor  # NumPy has no bfloat16
        return wide.detach().numpy()

    with torch.serialization.safe_globals([(_Unused, name) for name in UNUSED]):
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # has many types, and a text that proposes to execute the file
            problem = "is truncated or damaged; download it again"
            if name := re.search(r"GLOBAL ([\w.]*\w) ", str(error)):
                problem = f"refers to {name[1]}, which is never executed; save only the state_dict"
            raise WeightsError(problem) from None
    for inner in (found, *(found.get(name) for name in CONTAINERS if isinstance(found, dict))):
        items = inner.items() if isinstance(inner, dict) else ()
        tensors = {name: x for name, x in items if isinstance(x, torch.Tensor)}
        if arrays := {name: array(x) for name, x in tensors.items() if isinstance(name, str)}:
            return arrays
    where = f"neither at the top level nor under {', '.join(CONTAINERS)}"
    raise WeightsError(f"contains no state_dict, {where}")


def _view(
    storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> np.ndarray:
    """A view of the storage, which follows in the file."""
    steps = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


# The names in the published files.
NAMES: dict[str, Any] = {
    "FloatStorage": np.float32,
    "LongStorage": np.int64,
    "OrderedDict": OrderedDict,
    "_rebuild_tensor_v2": _view,
}


class _Unpickler(pickle.Unpickler):
    """Reads the pickles of the published files as NumPy arrays; imports nothing."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.storages: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        return NAMES[name]

    def persistent_load(self, identifier: Any) -> np.ndarray:
        _, dtype, key, _, size, _ = identifier
        return self.storages.setdefault(key, np.empty(size, dtype))


def read_packaged(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file of PACKAGES, in the format of torch before 1.6.

    It consists of five pickles (magic number, version, machine, tensors, keys of the storages), and
    of the length and the numbers of each storage. Only files with a known SHA-256 may be read.
    """
    with path.open("rb") as file:
        for _ in range(3):
            _Unpickler(file).load()
        unpickler = _Unpickler(file)
        tensors: dict[str, np.ndarray] = unpickler.load()
        for key in _Unpickler(file).load():
            file.seek(8, 1)
            file.readinto(unpickler.storages[key].data)
    return tensors


# Usual names of weight files in repositories of the hub, in order of preference.
_HUB_FILES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")


def fetch(source: str) -> Path:
    """The local file for "lite0", hf://owner/repository[/file] or a path; may download it."""
    if source in converted.PACKAGES:
        return converted.source(source)
    if source.startswith("hf://"):
        return _fetch_from_hub(source)
    return expand_path("--weights", source)


def _fetch_from_hub(source: str) -> Path:
    owner, _, rest = source.removeprefix("hf://").partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository):
        raise WeightsError(f"{source}: must be hf://owner/repository or hf://owner/repository/file")
    names = (file,) if file else _HUB_FILES
    where = f"{owner}/{repository}"
    elsewhere = f", or give the path of a file from https://huggingface.co/{where}"
    with hub.asking(f"hf://{where}", WeightsError, elsewhere) as library:
        for name in names:
            with suppress(library.errors.RemoteEntryNotFoundError):
                return Path(library.hf_hub_download(where, name))
    raise WeightsError(f"{source}: contains none of {', '.join(names)}; name the file")
