"""Reading torch's .pth and .pt files without torch, and without executing anything they contain.

Such a file contains a pickle and raw numbers. Names in the pickle are never imported: the functions that rebuild
tensors are replaced by functions of this module, the few classes that published checkpoints store beside the weights by
a function that returns None, and any other name is an error.

Both formats are supported: the zip archive (torch 1.6 and later) and the older sequence of pickles.
"""

import math
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from dml_jax.backbones.weights.torch_pickle import Malformed, Refused, inert, load
from dml_jax.errors import WeightsError
from dml_jax.files import reading

_MAGIC = 0x1950A86A20F9469CFC6C  # first pickle of the older format
_ZIP_HEAD, _PICKLE_HEAD = b"PK\3\4", b"\x80"
_DTYPES: dict[str, np.dtype] = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}
_MAX_AXES = 64  # NumPy's limit
_CONTAINERS = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights


@dataclass(frozen=True)
class _Storage:
    """A contiguous array of numbers in the file."""

    dtype: np.dtype
    size: int
    read: Callable[[], bytes]


@dataclass(frozen=True)
class View:
    """A tensor: a strided view of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self) -> np.ndarray:
        """The array, in the dtype of the file."""
        flat = np.frombuffer(self.storage.read(), self.storage.dtype)[self.offset :]
        strides = tuple(stride * flat.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, *rest: Any) -> View:
    shape, strides = tuple(shape), tuple(strides)
    valid = all(isinstance(n, int) and 0 <= n < 2**63 for n in (offset, *shape, *strides))
    if not (isinstance(storage, _Storage) and valid and len(shape) == len(strides) <= _MAX_AXES):
        raise Malformed("the description of a tensor is invalid")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.size:
        raise Malformed("a tensor exceeds its storage")
    if math.prod(shape) > storage.size:
        raise Malformed("a tensor has more elements than its storage")
    return View(storage, offset, shape, strides)


def _parameter(tensor: Any, *rest: Any) -> Any:
    return tensor


def _ordered(items: Any = ()) -> dict[str, Any]:
    items = list(items)
    if not all(isinstance(key, str) for key, _ in items):
        raise Malformed("a key of an OrderedDict is not a string")
    return dict(items)


def _size(*items: Any) -> tuple[Any, ...]:
    return tuple(*items)


_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _ordered,
    ("torch", "Size"): _size,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
    # DiVA's checkpoints also contain the options of the run and its curves.
    ("argparse", "Namespace"): inert,
    ("utilities.logger", "Progress_Saver"): inert,
    ("torch", "device"): inert,
    ("numpy", "dtype"): inert,
    ("numpy.core.multiarray", "scalar"): inert,
    ("numpy._core.multiarray", "scalar"): inert,
    ("_codecs", "encode"): inert,
}


def _unpickled(file: IO[bytes], storage: Callable[[str, np.dtype, int], _Storage]) -> Any:
    def persistent(identifier: Any) -> _Storage:
        kind, dtype, key, _, size = identifier[:5]
        types = isinstance(dtype, np.dtype) and isinstance(key, str) and isinstance(size, int)
        if kind != "storage" or not types or size < 0:
            raise Malformed("the description of a storage is invalid")
        return storage(key, dtype, size)

    return load(file, _NAMES, persistent)


def read(path: Path) -> dict[str, View]:
    """The tensors of a torch file by their names in its state_dict.

    Raises:
      WeightsError: truncated, in another format, or referring to anything but tensors.
    """
    with reading(path, "download it again", WeightsError), path.open("rb") as file:
        head = file.read(4)
        if head == _ZIP_HEAD and not zipfile.is_zipfile(path):
            raise WeightsError("is truncated; download it again")
        if head != _ZIP_HEAD and head[:1] != _PICKLE_HEAD:
            raise WeightsError("is neither a torch file nor safetensors" if head else "is empty; download it again")
        try:
            return _weights(_zip(path) if head == _ZIP_HEAD else _sequence(path))
        except Refused as error:
            raise WeightsError(
                f"refers to {error}, which is not needed for weights and is never executed; save only the state_dict"
            ) from None


def _zip(path: Path) -> Any:
    archive = zipfile.ZipFile(path)
    entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):  # torch never compresses
        raise Malformed("an entry is compressed")

    def storage(key: str, dtype: np.dtype, size: int) -> _Storage:
        entry = entries[f"data/{key}"]
        if entry.file_size != size * dtype.itemsize:
            raise Malformed(f"storage {key} has the wrong length")
        return _Storage(dtype, size, lambda: _entry(path, archive, entry))

    if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
        raise Malformed("the numbers are big-endian")
    with archive.open(entries["data.pkl"]) as file:
        return _unpickled(file, storage)


def _entry(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with reading(path, "download it again", WeightsError):
        return archive.read(entry)


def _sequence(path: Path) -> Any:
    """Pickles of magic number, protocol, machine, object and storage keys; then length and numbers of each storage."""
    offsets: dict[str, int] = {}
    storages: dict[str, tuple[np.dtype, int]] = {}

    def storage(key: str, dtype: np.dtype, size: int) -> _Storage:
        storages[key] = dtype, size
        return _Storage(dtype, size, lambda: _slice(path, offsets[key], size * dtype.itemsize))

    with path.open("rb") as file:
        magic, _, machine, found, keys = (_unpickled(file, storage) for _ in range(5))
        if magic != _MAGIC or not machine["little_endian"]:
            raise Malformed("torch's magic number is missing")
        end = path.stat().st_size
        for key in keys:
            dtype, size = storages[key]
            (length,) = struct.unpack("<q", file.read(8))
            offsets[key] = file.tell()
            if length != size or offsets[key] + size * dtype.itemsize > end:
                raise Malformed("the file is truncated")
            file.seek(size * dtype.itemsize, 1)
        if storages.keys() - offsets.keys():
            raise Malformed("a storage is missing")
    return found


def _slice(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _weights(found: Any) -> dict[str, View]:
    """The state_dict: the unpickled object itself, or an entry of it with one of the usual names."""
    for name in ("", *_CONTAINERS):
        inner = found.get(name) if name and isinstance(found, dict) else found
        if isinstance(inner, dict):
            views = {key: value for key, value in inner.items() if isinstance(key, str) and isinstance(value, View)}
            if views:
                return views
    raise WeightsError(f"contains no state_dict, neither at the top level nor under {', '.join(_CONTAINERS)}")
