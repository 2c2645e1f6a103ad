"""Converted weights on disk: a directory with `weights.safetensors` and `weights.json`.

Names of the tensors are paths in the trees a run uses: `backbone/params/...` and `backbone/stats/...`; of checkpoints
published by a method's authors also `method/params/...` and `method/state/...`, as `Method.init` lays them out; and
`classifier/...`, the ImageNet classifier, which no method uses.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from dml_jax.backbones.weights.tensor_files import Tensor
from dml_jax.errors import WeightsError
from dml_jax.files import below_a_file, sha256

WEIGHTS, INFO = "weights.safetensors", "weights.json"


def flatten(tree: Any, prefix: str) -> dict[str, Any]:
    """Leaves of a nested dict by their path, parts joined by slashes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join((prefix, *(part.key for part in path))): leaf for path, leaf in leaves}


def finite(tensors: Mapping[str, Tensor], source: str) -> dict[str, np.ndarray]:
    """The tensors as float32 arrays.

    Raises:
      WeightsError: one holds NaN or infinity.
    """
    arrays = {}
    for name, tensor in tensors.items():
        array = tensor.read()
        if not np.isfinite(array).all():
            raise WeightsError(f"{source}: {name} holds NaN or infinity")
        arrays[name] = np.ascontiguousarray(array, np.float32)
    return arrays


def free(directory: Path) -> None:
    """Raises WeightsError unless `write` can make `directory`."""
    if directory.exists():
        raise WeightsError(f"--output={directory}: exists already; remove it or give another")
    if below_a_file(directory):
        raise WeightsError(f"--output={directory}: lies below a file; give another")


def write(directory: Path, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
    """Writes converted weights; the directory appears whole or not at all.

    Args:
      directory: must not exist.
      arrays: float32 by path, with their axes in our order.
      info: for `weights.json`; the file's own SHA-256 is added.

    Raises:
      WeightsError: see `free`.
    """
    free(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        safetensors.numpy.save_file(dict(arrays), draft / WEIGHTS)
        complete = {**info, "weights_sha256": sha256(draft / WEIGHTS)}
        (draft / INFO).write_text(json.dumps(complete, indent=2) + "\n")
        (draft / WEIGHTS).chmod(0o644)
        draft.chmod(0o755)
        os.rename(draft, directory)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def read(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors by path, and what `weights.json` says.

    Raises:
      WeightsError: the directory is not one that `write` made, or its numbers have changed since.
    """
    try:
        info = json.loads((directory / INFO).read_text())
        recorded = info["weights_sha256"]
        if sha256(directory / WEIGHTS) != recorded:
            raise WeightsError(f"{directory / WEIGHTS}: its SHA-256 is not the one in {INFO}; convert again")
        return safetensors.numpy.load_file(directory / WEIGHTS), info
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise WeightsError(f"{directory}: not a directory of converted weights ({error})") from None


def command(source: str, directory: str) -> str:
    """The command that makes `directory`."""
    return f"python -m dml_jax.convert --weights={source} --output={directory}"


def load(directory: str, architecture: str, source: str) -> tuple[Any, Any]:
    """(params, stats) of a backbone, nested dicts of NumPy arrays.

    Args:
      directory: as `backbone.pretrained` names it.
      architecture: name of the backbone module that asks.
      source: where the weights are published, for the message.

    Raises:
      WeightsError: not there, damaged, or of another architecture.
    """
    path = Path(directory).expanduser()
    if not directory or not path.is_dir():
        raise WeightsError(
            f"backbone.pretrained={directory!r}: there are no converted weights; make them with "
            f"`{command(source, directory or 'weights/NAME')}`, or train from scratch with "
            "--config.backbone.pretrained=none"
        )
    tensors, info = read(path)
    found = info.get("architecture", {}).get("name")
    if found != architecture:
        raise WeightsError(f"backbone.pretrained={directory!r}: weights of {found}, but backbone.name={architecture!r}")
    return nest(tensors, "backbone/params/"), nest(tensors, "backbone/stats/")


def graft(directory: str, params: Any, state: Any) -> tuple[Any, Any, list[str]]:
    """A method's initial trees with what a converted checkpoint holds in their place.

    For evaluating what the authors published: their checkpoints hold the backbone and the layers an embedding needs,
    not always what only the loss uses.

    Args:
      directory: written by `python -m dml_jax.convert`.
      params, state: as `Method.init` returns them.

    Returns:
      (params, state, names of the leaves the checkpoint does not hold).

    Raises:
      WeightsError: naming tensors that have no place in the method, or another shape there.
    """
    tensors, _ = read(Path(directory).expanduser())
    places = {
        "backbone/params": "/params/backbone",
        "backbone/stats": "/state/backbone",
        "method/params": "/params",
        "method/state": "/state",
    }
    ours = flatten({"params": params, "state": state}, "")
    kept = dict(ours)
    problems = []
    for name, tensor in tensors.items():
        prefix = next((p for p in places if name.startswith(f"{p}/")), None)
        if prefix is None:
            continue
        place = places[prefix] + name.removeprefix(prefix)
        if place not in ours:  # fixed scales of batch norms are no parameters
            place = place.replace("/params/backbone/", "/state/backbone/")
        if place not in ours:
            problems.append(f"{name} has no place")
        elif ours[place].shape != tensor.shape:
            problems.append(f"{name} is {tensor.shape}, not {ours[place].shape}")
        else:
            ours[place] = jnp.asarray(tensor)
            del kept[place]
    if problems:
        raise WeightsError(f"{directory}: does not fit this method and backbone: {'; '.join(problems)}")
    tree = nest(ours, "/")
    return tree.get("params", {}), tree.get("state", {}), [name.removeprefix("/") for name in kept]


def arranged(found: Any, expected: Any) -> Any:
    """Moves leaves of {"params", "stats"} to the side where they are expected: fixed scales are no parameters."""
    leaves = flatten(found, "")
    wanted = flatten(expected, "")
    sides = {"params": "stats", "stats": "params"}

    def moved(name: str) -> str:
        _, side, rest = name.split("/", 2)
        other = f"/{sides[side]}/{rest}"
        return other if name not in wanted and other in wanted else name

    return {"params": {}, "stats": {}} | nest({moved(name): leaf for name, leaf in leaves.items()}, "/")


def check(directory: str, found: Any, expected: Any) -> None:
    """Compares two trees of arrays or shapes.

    Raises:
      WeightsError: naming every leaf that is missing, left over or misshapen.
    """
    ours = {name: tuple(leaf.shape) for name, leaf in flatten(expected, "").items()}
    theirs = {name: tuple(leaf.shape) for name, leaf in flatten(found, "").items()}
    describe(directory, ours, theirs)


def describe(source: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Compares names and shapes.

    Raises:
      WeightsError: naming every tensor that is missing, unexpected or misshapen.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    misshapen = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    named = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    faults = [f"{what}: {', '.join(names)}" for what, names in named.items() if names]
    if faults:
        raise WeightsError(f"{source}: not the weights of this network; {'; '.join(faults)}")


def nest(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The leaves under a prefix as a nested dict."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        if name.startswith(prefix):
            *path, last = name.removeprefix(prefix).split("/")
            branch = tree
            for part in path:
                branch = branch.setdefault(part, {})
            branch[last] = leaf
    return tree
