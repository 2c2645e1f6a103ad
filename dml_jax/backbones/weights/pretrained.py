"""Loading converted weights as the initial parameters and state of a backbone or method."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import traverse_util

from dml_jax.backbones.weights import packaged, store
from dml_jax.config.modules import module
from dml_jax.errors import WeightsError

# Options of any network that its shapes follow from, so that another size is said in a few words.
SIZES = ("block", "depths", "widths", "stem", "channels", "depth", "width", "patch", "registers", "distilled")


Shape = tuple[int, ...]


def leaf_shapes(tree: Any) -> dict[str, Shape]:
    """Shapes of the arrays in a nested dict, by path: keys joined by slashes."""
    return {path: tuple(leaf.shape) for path, leaf in traverse_util.flatten_dict(tree, sep="/").items()}


def check_shapes(source: str, expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """Raises WeightsError, which names `source` and every tensor that is missing, unexpected or of the wrong shape."""
    wrong = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    groups = {
        "missing": [name for name in expected if name not in found],
        "unexpected": [name for name in found if name not in expected],
        "wrong shape": wrong,
    }
    problems = [f"{what}: {', '.join(names)}" for what, names in groups.items() if names]
    if problems:
        raise WeightsError(f"{source}: the tensors do not match the network; {'; '.join(problems)}")


def load_backbone(options: Mapping[str, Any], source: str) -> tuple[Any, Any, bool]:
    """(params, stats) of a backbone, nested dicts of NumPy arrays, and whether they are known to fit it.

    `options` is its configuration as a dict; the message names `source`, where the weights are published.
    """
    directory, architecture = options["pretrained"], options["name"]
    path = packaged.directory(Path(directory).expanduser())
    if not directory or not path.is_dir():
        given, output = (directory, "") if path.is_file() else (source, directory)
        raise WeightsError(
            f"backbone.pretrained={directory!r}: is not a directory of converted weights; create one with "
            f"`dml-jax convert --weights={given} --output={output or 'weights/NAME'}`, "
            "or train from scratch with --config.backbone.pretrained=none"
        )
    arrays, metadata = store.read(path)
    found = metadata["architecture"].get("name")
    if found != architecture:
        raise WeightsError(
            f"backbone.pretrained={directory!r}: weights of {found}, but backbone.name={architecture!r}; "
            f"set it to {found!r}, or give other weights"
        )
    if wrong := differences(metadata["architecture"], options, SIZES):
        raise WeightsError(
            f"backbone.pretrained={directory!r}: weights of another {architecture}: {', '.join(wrong)}; set these "
            "values, or give other weights"
        )
    network = module("backbone", architecture)
    unseen = getattr(network, "UNSEEN", ())
    if wrong := differences(metadata["architecture"], options, unseen):
        raise WeightsError(f"backbone.pretrained={directory!r}: was trained with {', '.join(wrong)}; set these values")
    # What `weights.json` says of the network is not covered by the digest, so it is compared with the published one.
    known = getattr(network, "PUBLISHED", {}).get(packaged.CONVERTED.get(metadata["weights_sha256"]))
    fits = known is not None and not differences(asdict(known), options, options.keys() - {"pretrained"})
    return store.subtree(arrays, "backbone/params/"), store.subtree(arrays, "backbone/stats/"), fits


def overridden_pixels(options: Mapping[str, Any]) -> list[str]:
    """`backbone.pixels.key=value instead of value` of each way in which pixels differ from those of the weights.

    The code of MPN and DiVA gives networks other pixels on purpose; by mistake, they cost much and show nowhere.
    """
    if options["pretrained"] == "none":
        return []
    directory = packaged.directory(Path(options["pretrained"]).expanduser())
    if not directory.is_dir():
        return []
    return differences(store.read_metadata(directory)["architecture"], options, ("pixels",))


def differences(recorded: Mapping[str, Any], options: Mapping[str, Any], keys: Collection[str]) -> list[str]:
    """What the shapes do not show: `backbone.key=value instead of value` of each option that differs from the weights.

    Args:
      recorded: "architecture" of `weights.json`; what it does not have is not compared.
      options: the configuration of the backbone as a dict, of which `keys` are compared.
    """
    found, wanted = (
        traverse_util.flatten_dict(json.loads(json.dumps({key: values[key] for key in keys if key in values})), sep=".")
        for values in (recorded, options)
    )
    return [
        f"backbone.{key}={found[key]} instead of {value}"
        for key, value in wanted.items()
        if found.get(key, value) != value
    ]


def match_backbone(source: str, found: Any, expected: Any) -> Any:
    """The loaded {"params", "stats"} of a backbone, arranged as the network expects them.

    Scales and biases of batch norms are in "stats" if they are fixed, otherwise in "params"; they are moved to the
    collection that the network has them in. The message names `source`, the directory of the weights.
    """
    wanted = leaf_shapes(expected)
    other = {"params": "stats", "stats": "params"}
    moved = {}
    for path, leaf in traverse_util.flatten_dict(found, sep="/").items():
        collection, _, rest = path.partition("/")
        alternative = f"{other[collection]}/{rest}"
        moved[alternative if path not in wanted and alternative in wanted else path] = leaf
    result = {"params": {}, "stats": {}} | traverse_util.unflatten_dict(moved, sep="/")
    check_shapes(source, wanted, leaf_shapes(result))
    return result


def load_method(directory: str, params: Any, state: Any) -> tuple[Any, Any, list[str]]:
    """Replaces a method's initial parameters and state by those of a converted checkpoint.

    Published checkpoints hold the backbone and the layers that compute embeddings, but not always the parameters that
    only the loss uses; those keep their initial values.

    Returns:
      (params, state, paths of the leaves that are not in the checkpoint).
    """
    arrays, _ = store.read(Path(directory).expanduser())
    prefixes = {
        "backbone/params/": "params/backbone/",
        "backbone/stats/": "state/backbone/",
        "method/params/": "params/",
        "method/state/": "state/",
    }
    leaves = traverse_util.flatten_dict({"params": params, "state": state}, sep="/")
    remaining = dict.fromkeys(leaves)
    problems = []
    for name, array in arrays.items():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is None:
            continue
        path = prefixes[prefix] + name.removeprefix(prefix)
        if path not in leaves:  # fixed scales of batch norms are in the state
            path = path.replace("params/backbone/", "state/backbone/", 1)
        if path not in leaves:
            problems.append(f"{name} does not exist in the method")
        elif leaves[path].shape != array.shape:
            problems.append(f"{name} has shape {array.shape} instead of {leaves[path].shape}")
        else:
            leaves[path] = jnp.asarray(array)
            remaining.pop(path, None)
    if problems:
        raise WeightsError(f"{directory}: does not match this method and backbone: {'; '.join(problems)}")
    tree = traverse_util.unflatten_dict(leaves, sep="/")
    return tree.get("params", {}), tree.get("state", {}), list(remaining)
