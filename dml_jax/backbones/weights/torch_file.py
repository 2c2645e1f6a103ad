"""Reading torch's .pth and .pt files without torch, and without running anything they contain.

Such a file is a pickle beside raw numbers. Names in the pickle are not looked up in any module: what rebuilds tensors
is replaced by functions of this file, the few classes that authors keep beside their weights by nothing, and any other
name ends the reading.

Both forms are known: the zip archive (torch 1.6 and later) and the older sequence of pickles.
"""

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

_MAGIC = 0x1950A86A20F9469CFC6C  # first pickle of the older form
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
_CONTAINERS = ("state_dict", "model_state_dict", "model")  # where authors put the weights


@dataclass(frozen=True)
class _Storage:
    """A run of numbers in the file."""

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
        """The numbers, in the dtype of the file."""
        flat = np.frombuffer(self.storage.read(), self.storage.dtype)[self.offset :]
        strides = tuple(stride * flat.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, *rest: Any) -> View:
    shape, strides = tuple(shape), tuple(strides)
    whole = all(isinstance(n, int) and n >= 0 for n in (offset, *shape, *strides))
    if not (isinstance(storage, _Storage) and whole and len(shape) == len(strides)):
        raise Malformed("a tensor is described wrongly")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.size:
        raise Malformed("a tensor reaches beyond its numbers")
    return View(storage, offset, shape, strides)


def _parameter(tensor: Any, *rest: Any) -> Any:
    return tensor


def _ordered(*items: Any) -> dict[Any, Any]:
    return dict(*items)


def _size(*items: Any) -> tuple[Any, ...]:
    return tuple(*items)


_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _ordered,
    ("torch", "Size"): _size,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
    # Beside the weights in checkpoints of DiVA: the options of the run and its curves.
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
        if kind != "storage" or not isinstance(dtype, np.dtype) or not isinstance(size, int) or size < 0:
            raise Malformed("a storage is described wrongly")
        return storage(str(key), dtype, size)

    return load(file, _NAMES, persistent)


def read(path: Path) -> dict[str, View]:
    """The tensors of a torch file under their names in its state_dict.

    Raises:
      WeightsError: truncated, of another kind, or naming anything but tensors.
    """
    try:
        return _weights(path, _zip(path) if zipfile.is_zipfile(path) else _sequence(path))
    except WeightsError:
        raise
    except Refused as error:
        raise WeightsError(
            f"{path}: refers to {error}, which plain weights do not need and which is not looked up here; "
            "save the state_dict alone"
        ) from None
    except Exception as error:  # whatever a broken or hostile file provokes
        raise WeightsError(f"{path}: neither a whole torch file nor safetensors ({error}); fetch it again") from None


def _zip(path: Path) -> Any:
    archive = zipfile.ZipFile(path)
    entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}

    def storage(key: str, dtype: np.dtype, size: int) -> _Storage:
        entry = entries[f"data/{key}"]
        if entry.file_size != size * dtype.itemsize or entry.compress_type != zipfile.ZIP_STORED:
            raise Malformed(f"the numbers of storage {key} have the wrong length")
        return _Storage(dtype, size, lambda: _entry(path, archive, entry))

    if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
        raise Malformed("big-endian numbers")
    with archive.open(entries["data.pkl"]) as file:
        return _unpickled(file, storage)


def _entry(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(entry)
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError) as error:
        raise WeightsError(f"{path}: damaged ({error}); fetch it again") from None


def _sequence(path: Path) -> Any:
    """Pickles of magic number, protocol, machine, object and storage keys; then length and numbers of each storage."""
    places: dict[str, int] = {}
    described: dict[str, tuple[np.dtype, int]] = {}

    def storage(key: str, dtype: np.dtype, size: int) -> _Storage:
        described[key] = dtype, size
        return _Storage(dtype, size, lambda: _slice(path, places[key], size * dtype.itemsize))

    with path.open("rb") as file:
        magic, _, machine, found, keys = (_unpickled(file, storage) for _ in range(5))
        if magic != _MAGIC or not machine["little_endian"]:
            raise Malformed("not torch's magic number")
        end = path.stat().st_size
        for key in keys:
            dtype, size = described[key]
            (length,) = struct.unpack("<q", file.read(8))
            places[key] = file.tell()
            if length != size or places[key] + size * dtype.itemsize > end:
                raise Malformed("it ends early")
            file.seek(size * dtype.itemsize, 1)
    return found


def _slice(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _weights(path: Path, found: Any) -> dict[str, View]:
    """The state_dict in what the file holds: itself, or in one of the usual containers."""
    for name in ("", *_CONTAINERS):
        inner = found.get(name) if name and isinstance(found, dict) else found
        if isinstance(inner, dict):
            views = {key: value for key, value in inner.items() if isinstance(key, str) and isinstance(value, View)}
            if views:
                return views
    raise WeightsError(f"{path}: holds no state_dict; looked for one at the top and under {', '.join(_CONTAINERS)}")
