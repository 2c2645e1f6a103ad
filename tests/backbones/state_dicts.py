"""Random state_dicts with torch's names and axes, and files in torch's format, created without torch."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.weights.torch_names import torch_name

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


class Name:
    """A global in a pickle: written by name and never imported."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None:
        raise AssertionError


class Call:
    """An object that is unpickled by calling a global."""

    def __init__(self, function: Name, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


class Storage:
    def __init__(self, key: str, array: np.ndarray) -> None:
        self.key, self.array = key, array


KINDS = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
}


class Pickler(pickle._Pickler):  # type: ignore[name-defined]  # the Python implementation, whose `save` can be overridden
    def __init__(self, file: Any, legacy: bool = False) -> None:
        super().__init__(file, protocol=2)
        self.legacy = legacy

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Name):
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        else:
            super().save(obj, save_persistent_id)

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Storage):
            return None
        kind = Name("torch", KINDS[obj.array.dtype.name])
        return ("storage", kind, obj.key, "cpu", obj.array.size, *([None] if self.legacy else []))


def tensor(key: str, array: np.ndarray) -> Call:
    strides = tuple(s // array.itemsize for s in array.strides) if array.ndim else ()
    storage = Storage(key, np.ascontiguousarray(array).ravel())
    return Call(Name("torch._utils", "_rebuild_tensor_v2"), storage, 0, array.shape, strides, False, OrderedDict())


def write(path: Path, contents: Any, legacy: bool = False) -> Path:
    """Writes nested dicts of arrays in the format of torch.save."""
    storages: dict[str, np.ndarray] = {}

    def wrap(value: Any) -> Any:
        if isinstance(value, dict):
            return OrderedDict((key, wrap(inner)) for key, inner in value.items())
        if isinstance(value, np.ndarray):
            key = str(len(storages))
            storages[key] = value
            return tensor(key, np.ascontiguousarray(value) if value.ndim else value)
        return value

    wrapped = wrap(contents)
    if legacy:
        with path.open("wb") as file:
            machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
            for value in (0x1950A86A20F9469CFC6C, 1001, machine, wrapped, sorted(storages)):
                Pickler(file, legacy=True).dump(value)
            for key in sorted(storages):
                file.write(struct.pack("<q", storages[key].size) + np.ascontiguousarray(storages[key]).tobytes())
        return path
    pickled = io.BytesIO()
    Pickler(pickled).dump(wrapped)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled.getvalue())
        archive.writestr("archive/byteorder", "little")
        for key, array in storages.items():
            archive.writestr(f"archive/data/{key}", np.ascontiguousarray(array).tobytes())
        archive.writestr("archive/version", "3\n")
    return path
