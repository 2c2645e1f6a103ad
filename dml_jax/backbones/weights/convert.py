"""Converting the tensors of published torch weights to arrays by path; every tensor must be accounted for."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import jax
import numpy as np

from dml_jax.backbones.contract import Config
from dml_jax.backbones.weights.check_shapes import Shape, check_shapes, leaf_shapes
from dml_jax.backbones.weights.layouts import StateDict
from dml_jax.backbones.weights.recognise import Weights, recognise
from dml_jax.backbones.weights.tensor_files import Tensor, concatenate
from dml_jax.backbones.weights.torch_names import to_jax_axes, torch_name, torch_shape
from dml_jax.config.modules import module
from dml_jax.errors import WeightsError

MPN_TENSOR = "gnn_model.node_model.layers.0.att.q_linear.weight"  # identifies a message passing network of MPN


class Converted(NamedTuple):
    """Tensors ready to be written."""

    weights: Weights
    tensors: StateDict  # by path as in `store`, with their axes in JAX order
    torch_names: dict[str, str]  # path -> name in the recognised state_dict, backbone only
    kind: str  # what the checkpoint contains, for messages

    def metadata(self, source: str, digests: Mapping[str, str]) -> dict[str, Any]:
        """Content of `weights.json`; `source` is the value of `--weights`, `digests` are SHA-256 by file name."""
        config = asdict(self.weights.config)
        architecture = {key: value for key, value in config.items() if key not in ("pretrained", "remat", "dtype")}
        sizes = {path: math.prod(tensor.shape) for path, tensor in self.tensors.items()}
        return {
            "architecture": architecture,
            "layout": self.weights.layout,
            "kind": self.kind,
            "image_shape": list(self.weights.image_shape),
            "crop_fraction": self.weights.crop_fraction,
            "interpolation": self.weights.interpolation,
            "parameters": sum(size for path, size in sizes.items() if path.startswith("backbone/params/")),
            "source": source,
            "source_sha256": dict(digests),
        }


def convert(files: Mapping[str, Mapping[str, Tensor]]) -> Converted:
    """Assigns every tensor a path; raises WeightsError, which names those that do not fit.

    Args:
      files: tensors by file name, from `tensor_files.read`: one file with a backbone and at most one with the message
        passing network of MPN.
    """
    networks = [name for name, tensors in files.items() if MPN_TENSOR in _without_module_prefix(tensors)]
    backbones = [name for name in files if name not in networks]
    if len(backbones) != 1 or len(networks) > 1:
        raise WeightsError(
            f"{', '.join(files)}: must be one file with a backbone and at most one with the network of MPN"
        )
    source = backbones[0]
    converted = _convert_backbone(recognise(_without_module_prefix(files[source]), source), source)
    for name in networks:
        converted.tensors.update(_convert_mpn(_without_module_prefix(files[name]), name))
    return converted if not networks else converted._replace(kind="MPN, with its message passing network")


def _without_module_prefix(tensors: Mapping[str, Tensor]) -> StateDict:
    """Names without the prefix that torch.nn.DataParallel adds."""
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}


def _to_jax(path: tuple[str, ...], tensor: Tensor, shape: Shape) -> Tensor:
    """The tensor with its axes in JAX order; `shape` is the resulting shape."""
    return Tensor(shape, lambda: to_jax_axes(path, tensor.read().reshape(torch_shape(path, shape))))


def expected_shapes(config: Config, image_shape: tuple[int, int]) -> dict[str, Shape]:
    """Shapes of a backbone's arrays by path, in JAX order."""
    backbone = module("backbone", config.name).build(config)
    params, stats = jax.eval_shape(lambda: backbone.init(jax.random.key(0), image_shape))
    return leaf_shapes({"backbone": {"params": params, "stats": stats}})


def _convert_backbone(weights: Weights, source: str) -> Converted:
    architecture, tensors = weights.config.name, weights.tensors
    shapes = expected_shapes(weights.config, weights.image_shape)
    keys = {path: tuple(path.split("/")[2:]) for path in shapes}  # below backbone/params or backbone/stats
    torch_names = {path: torch_name(architecture, keys[path]) for path in shapes}
    names = set(torch_names.values())
    heads, kind = _heads(weights, {name: tensor for name, tensor in tensors.items() if name not in names})
    expected = {name: torch_shape(keys[path], shapes[path]) for path, name in torch_names.items()}
    found = {name: tensor.shape for name, tensor in tensors.items() if name not in heads}
    for name, shape in expected.items():
        if len(shape) == 1 and found.get(name) == (1, *shape):  # as in the batch norms of Cadene's files
            found[name] = shape
    check_shapes(source, expected, found)
    converted = {path: _to_jax(keys[path], tensors[name], shapes[path]) for path, name in torch_names.items()}
    return Converted(weights, converted | dict(heads.values()), torch_names, kind)


def _heads(weights: Weights, tensors: StateDict) -> tuple[dict[str, tuple[str, Tensor]], str]:
    """The layers on top of the backbone: torch name -> (path, tensor), and the kind of checkpoint they imply."""
    # The classifier of ImageNet is kept. The authors of HIST add a layer `embedding`, those of DiVA one layer per task
    # under `last_linear`, those of MPN `red` (or `embed`) and an auxiliary classifier `fc`.
    reduced = any(f"{name}.weight" in tensors for name in ("red", "embed"))
    network = module("backbone", weights.config.name)
    channels = network.build(weights.config).channels
    # (pattern of the module's torch name, path, kind of checkpoint)
    rules: list[tuple[str, str, str]] = [
        (r"embedding", "method/params/embedding", "HIST"),
        (r"red|embed", "method/params/embedding", "MPN"),
        (r"last_linear\.(\w+)", r"method/params/heads/\1", "DiVA"),
        (r"fc", "method/params/auxiliary", "MPN") if reduced else (r"fc", "classifier/fc", ""),
        *((re.escape(name), f"classifier/{name}", "") for name in network.CLASSIFIERS if name != "fc"),
    ]
    heads: dict[str, tuple[str, Tensor]] = {}
    kind = "backbone"
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        rule = next((rule for rule in rules if re.fullmatch(rule[0], owner)), None)
        if rule is None or leaf not in ("weight", "bias") or len(tensor.shape) != (2 if leaf == "weight" else 1):
            continue
        layer = re.sub(rule[0], rule[1], owner)
        if leaf == "weight" and tensor.shape[1] != channels and not layer.endswith("auxiliary"):
            continue
        path = f"{layer}/{'kernel' if leaf == 'weight' else 'bias'}"
        heads[name] = path, _reordered(path, tensor)
        kind = rule[2] or kind
    return heads, kind


def _convert_mpn(tensors: StateDict, source: str) -> StateDict:
    """The message passing network of MPN, from the state_dict of the authors' class GNNReID."""
    layout: dict[str, tuple[str, str, Shape]] = {}  # torch name -> layer, leaf, shape in torch's order

    def linear(module: str, layer: str, outputs: int, inputs: int) -> None:
        layout[f"{module}.weight"] = layer, "kernel", (outputs, inputs)
        layout[f"{module}.bias"] = layer, "bias", (outputs,)

    def norm(module: str, layer: str, size: int) -> None:
        layout[f"{module}.weight"] = layer, "scale", (size,)
        layout[f"{module}.bias"] = layer, "bias", (size,)

    def length(name: str, axis: int) -> int:
        shape = tensors[name].shape if name in tensors else ()
        return shape[axis] if len(shape) > axis else 0

    d, width = length(MPN_TENSOR, 0), length("bottleneck.0.weight", 0)
    layers = next(i for i in range(len(tensors) + 1) if MPN_TENSOR.replace(".0.", f".{i}.") not in tensors)
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
    layout["fc.0.weight"] = "classifier", "kernel", (length("fc.0.weight", 0), width)
    statistics = {f"bottleneck.0.running_{name}": (f"method/state/neck/{name}", (width,)) for name in ("mean", "var")}

    found = {name: t.shape for name, t in tensors.items() if not name.endswith("num_batches_tracked")}
    expected = {name: shape for name, (_, _, shape) in layout.items()} | {n: s for n, (_, s) in statistics.items()}
    check_shapes(source, expected, found)
    if np.any(tensors["bottleneck.0.bias"].read() != 0):
        raise WeightsError(f"{source}: bottleneck.0.bias is not zero, but MPN does not train this bias")
    renamed = {f"{layer}/{leaf}": tensors[name] for name, (layer, leaf, _) in layout.items()}
    del renamed["neck/bias"]
    for i in range(layers):
        for leaf in ("kernel", "bias"):
            both = [renamed.pop(f"layer{i + 1}/{part}/{leaf}") for part in ("keys", "values")]
            renamed[f"layer{i + 1}/key_value/{leaf}"] = concatenate(both)
    converted = {f"method/params/mpn/{path}": _reordered(path, tensor) for path, tensor in renamed.items()}
    return converted | {path: tensors[name] for name, (path, _) in statistics.items()}


def _reordered(path: str, tensor: Tensor) -> Tensor:
    keys = tuple(path.split("/"))
    return _to_jax(keys, tensor, torch_shape(keys, tensor.shape))
