"""From files of published weights to arrays by the paths a run uses; every tensor accounted for."""

import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import jax
import numpy as np

from dml_jax.backbones.weights.recognise import Weights, recognise
from dml_jax.backbones.weights.store import describe, flatten
from dml_jax.backbones.weights.tensor_files import Tensor, joined
from dml_jax.backbones.weights.torch_names import CLASSIFIERS, from_torch, torch_name, torch_shape
from dml_jax.errors import WeightsError

NETWORK = "gnn_model.node_model.layers.0.att.q_linear.weight"  # only a message passing network of MPN's authors has it


class Converted(NamedTuple):
    """Tensors ready to be written.

    Attributes:
      weights: what the backbone was recognised as.
      tensors: by path, as `pretrained` names them, with their axes in our order.
      torch_names: path -> name in the recognised state_dict, backbone only.
      kind: what the checkpoint is, in words.
    """

    weights: Weights
    tensors: dict[str, Tensor]
    torch_names: dict[str, str]
    kind: str

    def info(self, source: str, digests: Mapping[str, str]) -> dict[str, Any]:
        """For `weights.json`."""
        config = asdict(self.weights.config)
        architecture = {key: value for key, value in config.items() if key not in ("pretrained", "remat", "dtype")}
        counted = {name: math.prod(t.shape) for name, t in self.tensors.items()}
        return {
            "architecture": architecture,
            "layout": self.weights.layout,
            "kind": self.kind,
            "image_shape": list(self.weights.image_shape),
            "parameters": sum(n for name, n in counted.items() if name.startswith("backbone/params/")),
            "source": source,
            "source_sha256": dict(digests),
        }


def convert(files: Mapping[str, Mapping[str, Tensor]]) -> Converted:
    """Assigns every tensor of the files its place.

    Args:
      files: what `_files.read` returned, by file name: one with a backbone, perhaps one with MPN's message passing
        network.

    Raises:
      WeightsError: naming every tensor that is missing, unexpected or misshapen.
    """
    networks = [name for name, tensors in files.items() if NETWORK in _bare(tensors)]
    backbones = [name for name in files if name not in networks]
    if len(backbones) != 1 or len(networks) > 1:
        raise WeightsError(f"{', '.join(files)}: give one file with a backbone, and at most one with MPN's network")
    source = backbones[0]
    try:
        weights = recognise(_bare(files[source]), source)
        converted = _backbone(weights, source)
    except WeightsError as error:
        raise error if str(error).startswith(source) else WeightsError(f"{source}: {error}") from None
    for name in networks:
        converted.tensors.update(_network(_bare(files[name]), name))
    return converted if not networks else converted._replace(kind="MPN, with its message passing network")


def _bare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefix that training on several cards leaves."""
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}


def _permuted(path: tuple[str, ...], tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor(shape, lambda: from_torch(path, tensor.read().reshape(torch_shape(path, shape))))


def expected_shapes(config: Any, image_shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Shapes of the backbone's leaves by path, in our order."""
    module = importlib.import_module(f"dml_jax.backbones.{config.name}")
    params, stats = jax.eval_shape(lambda: module.build(config).init(jax.random.key(0), image_shape))
    leaves = flatten(params, "backbone/params") | flatten(stats, "backbone/stats")
    return {name: leaf.shape for name, leaf in leaves.items()}


def _backbone(weights: Weights, source: str) -> Converted:
    architecture, left = weights.config.name, dict(weights.tensors)
    ours: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {}
    for place, shape in expected_shapes(weights.config, weights.image_shape).items():
        path = tuple(place.split("/")[2:])
        ours[torch_name(architecture, path)] = place, path, shape
    heads, kind = _heads(weights, {name: tensor for name, tensor in left.items() if name not in ours})
    expected = {name: torch_shape(path, shape) for name, (_, path, shape) in ours.items()}
    found = {name: tensor.shape for name, tensor in left.items() if name not in heads}
    for name, shape in expected.items():
        if len(shape) == 1 and found.get(name) == (
            1,
            *shape,
        ):  # vectors of batch norms that Cadene keeps as rows
            found[name] = shape
    describe(source, expected, found)
    tensors = {place: _permuted(path, left[name], shape) for name, (place, path, shape) in ours.items()}
    tensors |= dict(heads.values())
    return Converted(weights, tensors, {place: name for name, (place, _, _) in ours.items()}, kind)


def _heads(weights: Weights, left: Mapping[str, Tensor]) -> tuple[dict[str, tuple[str, Tensor]], str]:
    """What stands on the backbone: torch name -> (path, tensor); and what that makes of the checkpoint.

    ImageNet's classifier is kept beside the backbone. HIST's authors add `embedding`, DiVA's one layer per task under
    `last_linear`, MPN's `red` (or `embed`) and an auxiliary classifier `fc`.
    """
    reduced = any(f"{name}.weight" in left for name in ("red", "embed"))
    channels = importlib.import_module(f"dml_jax.backbones.{weights.config.name}").build(weights.config).channels
    rules: list[tuple[str, str, str]] = [
        (r"embedding", "method/params/embedding", "HIST"),
        (r"red|embed", "method/params/embedding", "MPN"),
        (r"last_linear\.(\w+)", r"method/params/heads/\1", "DiVA"),
        (r"fc", "method/params/auxiliary", "MPN") if reduced else (r"fc", "classifier/fc", ""),
        *((re.escape(name), f"classifier/{name}", "") for name in CLASSIFIERS[weights.config.name] if name != "fc"),
    ]
    heads: dict[str, tuple[str, Tensor]] = {}
    kind = "backbone"
    for name, tensor in left.items():
        module, _, leaf = name.rpartition(".")
        rule = next((rule for rule in rules if re.fullmatch(rule[0], module)), None)
        if rule is None or leaf not in ("weight", "bias") or len(tensor.shape) != (2 if leaf == "weight" else 1):
            continue
        place = re.sub(rule[0], rule[1], module)
        if leaf == "weight" and tensor.shape[1] != channels and not place.endswith("auxiliary"):
            continue
        path = f"{place}/{'kernel' if leaf == 'weight' else 'bias'}"
        heads[name] = path, _reordered(path, tensor)
        kind = rule[2] or kind
    return heads, kind


def _network(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """MPN's message passing network, from the state_dict of its authors' GNNReID."""
    places: dict[str, tuple[str, str, tuple[int, ...]]] = {}  # torch name -> place, leaf, shape in torch's order

    def linear(module: str, place: str, outputs: int, inputs: int) -> None:
        places[f"{module}.weight"] = place, "kernel", (outputs, inputs)
        places[f"{module}.bias"] = place, "bias", (outputs,)

    def norm(module: str, place: str, size: int) -> None:
        places[f"{module}.weight"] = place, "scale", (size,)
        places[f"{module}.bias"] = place, "bias", (size,)

    def length(name: str, axis: int) -> int:
        shape = tensors[name].shape if name in tensors else ()
        return shape[axis] if len(shape) > axis else 0

    d, width = length(NETWORK, 0), length("bottleneck.0.weight", 0)
    layers = next(i for i in range(len(tensors) + 1) if NETWORK.replace(".0.", f".{i}.") not in tensors)
    linear("dim_red", "projection", d, d)
    for i in range(layers):
        theirs, ours = f"gnn_model.node_model.layers.{i}", f"layer{i + 1}"
        linear(f"{theirs}.att.q_linear", f"{ours}/query", d, d)
        linear(f"{theirs}.att.k_linear", f"{ours}/keys", d, d)
        linear(f"{theirs}.att.v_linear", f"{ours}/values", d, d)
        linear(f"{theirs}.att.out", f"{ours}/output", d, d)
        linear(f"{theirs}.linear1", f"{ours}/ff1", 4 * d, d)
        linear(f"{theirs}.linear2", f"{ours}/ff2", d, 4 * d)
        norm(f"{theirs}.norm1", f"{ours}/norm1", d)
        norm(f"{theirs}.norm2", f"{ours}/norm2", d)
    norm("bottleneck.0", "neck", width)
    places["fc.0.weight"] = "classifier", "kernel", (length("fc.0.weight", 0), width)
    statistics = {f"bottleneck.0.running_{name}": (f"method/state/neck/{name}", (width,)) for name in ("mean", "var")}

    found = {name: t.shape for name, t in tensors.items() if not name.endswith("num_batches_tracked")}
    expected = {name: shape for name, (_, _, shape) in places.items()} | {n: s for n, (_, s) in statistics.items()}
    describe(source, expected, found)
    if np.any(tensors["bottleneck.0.bias"].read() != 0):
        raise WeightsError(f"{source}: bottleneck.0.bias is not zero, where its authors keep it")
    plain = {f"{place}/{leaf}": tensors[name] for name, (place, leaf, _) in places.items()}
    del plain["neck/bias"]
    for i in range(layers):
        for leaf in ("kernel", "bias"):
            both = [plain.pop(f"layer{i + 1}/{part}/{leaf}") for part in ("keys", "values")]
            plain[f"layer{i + 1}/key_value/{leaf}"] = joined(both)
    result = {f"method/params/mpn/{place}": _reordered(place, tensor) for place, tensor in plain.items()}
    return result | {place: tensors[name] for name, (place, _) in statistics.items()}


def _reordered(place: str, tensor: Tensor) -> Tensor:
    path = tuple(place.split("/"))
    return _permuted(path, tensor, torch_shape(path, tensor.shape))
