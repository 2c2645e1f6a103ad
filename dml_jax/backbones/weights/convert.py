"""Converts the tensors of published torch weights to arrays by path; none may be left over.

A backbone module declares for `dml-jax convert`:

    PUBLISHED        the published networks by name: dict[str, Config]
    LAYOUTS          the names that libraries and authors give its tensors: list[Layout]
    CLASSIFIERS      torch names of the ImageNet classifiers, which are not part of the backbone
    torch_module     path of a module in `params` -> its torch name, in the layout without rules
    UNSEEN           optional: options that change its features but not the shapes of its weights

A method's module `checkpoints` may define a CHECKPOINT: Checkpoint.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from dml_jax.backbones.contract import Config
from dml_jax.backbones.weights.converted import Shape, check_shapes, leaf_shapes
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.modules import choices, plugin_module
from dml_jax.errors import ConfigError, WeightsError

# Pattern of a tensor's name, and its replacement.
Rule = tuple[str, str | Callable[[re.Match[str]], str]]

_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


class Network(NamedTuple):
    """A network that tensors belong to."""

    config: Config
    side: int = 224  # image size in pixels: of learned positions, or of the published accuracy
    crop_fraction: float = 0.875  # side of that crop / side of the resized image
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"  # used for that resizing


class Layout(NamedTuple):
    """The names of a network's tensors in a library or in the authors' code.

    `read` derives the network from the renamed tensors: from one-dimensional ones, so that a
    transposed kernel is reported as a wrong shape. Tensors that the rules rename to `name@0.leaf`,
    `name@1.leaf`, … are concatenated.
    """

    library: str  # for messages
    marker: str  # a tensor that identifies the layout
    read: Callable[[StateDict], Network]
    rules: tuple[Rule, ...] = ()  # from the names to the names of `torch_module`, in order


class Head(NamedTuple):
    """A linear layer on top of a backbone, in an authors' checkpoint."""

    module: str  # pattern of its torch name
    path: str  # where it is stored (see `converted`); may refer to groups of the pattern
    on_features: bool = True  # whether its inputs are the backbone's pooled features


class SecondNetwork(NamedTuple):
    """A network of a method that its authors publish in a second file, beside the backbone's."""

    name: str  # for messages
    marker: str  # a tensor that identifies the file
    # (tensors, name of the file) -> arrays by path, as in `converted`
    convert: Callable[[StateDict, str], StateDict]


class Checkpoint(NamedTuple):
    """The names of the tensors that a method's authors publish in addition to a backbone."""

    method: str  # for messages
    heads: tuple[Head, ...]  # the first identifies the layout
    repeated: tuple[str, ...] = ()  # prefixes of tensors that other names also have
    network: SecondNetwork | None = None


def count(tensors: StateDict, name: Callable[[int], str]) -> int:
    """How many of the numbered tensors name(0), name(1), … there are."""
    return next(n for n in range(len(tensors) + 1) if name(n) not in tensors)


def length(tensors: StateDict, name: str) -> int:
    """Number of elements of a tensor, at least 1."""
    return max(1, math.prod(tensors[name].shape))


def transformer_sizes(tensors: StateDict) -> dict[str, Any]:
    """`depth`, `width` and `patch` of a vision transformer; a missing kernel is reported later."""
    kernel = tensors.get("patch_embed.proj.weight")
    return {
        "depth": count(tensors, lambda i: f"blocks.{i}.norm1.weight"),
        "width": length(tensors, "norm.weight"),
        "patch": kernel.shape[-1] if kernel is not None and kernel.shape else 16,
    }


def numbered(template: str) -> Callable[[re.Match[str]], str]:
    """`template` with the first group plus one: Hugging Face counts from 0, the authors from 1."""
    return lambda match: template.format(int(match[1]) + 1)


def dotted(modules: str) -> str:
    """Indices as in torch's nn.Sequential: layer1_0 -> layer1.0."""
    return re.sub(r"_(\d+)", r".\1", modules)


def torch_name(architecture: str, path: tuple[str, ...]) -> str:
    """The torch name of a leaf of `params` or `stats`, e.g. ("layer1_0", "conv1", "kernel")."""
    modules = plugin_module("backbone", architecture).torch_module(path[:-1])
    leaf = _LEAVES.get(path[-1], path[-1])
    return f"{modules}.{leaf}" if modules else leaf


def to_jax_axes(path: tuple[str, ...], tensor: np.ndarray) -> np.ndarray:
    """A torch tensor with its axes in JAX order; only kernels differ.

    Convolutions are [out, in, height, width] in torch, here reversed, and linear layers [out, in].
    """
    if path[-1] != "kernel":
        return tensor
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def torch_shape(path: tuple[str, ...], shape: Shape) -> Shape:
    """The shape in torch of an array of this shape in JAX."""
    if path[-1] != "kernel":
        return shape
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]


# Tensors that no backbone has: GoogLeNet's auxiliary classifiers, layers of vision transformers for
# pretraining only, and text towers.
UNUSED = ("aux1.", "aux2.", "pooler.", "mask_token", "text_model.", "logit_scale", "logit_bias")


class Converted(NamedTuple):
    """A recognised file, ready to be written."""

    layout: str  # library or authors whose names the file uses
    network: Network
    tensors: StateDict  # by path as in `converted`, with their axes in JAX order
    kind: str  # content of the checkpoint

    def metadata(self, source: str, digests: Mapping[str, str]) -> dict[str, Any]:
        """Content of `weights.json`; `digests` are SHA-256 by the names of the files."""
        network = self.network
        options, fixed = asdict(network.config), {"pretrained", "remat", "dtype"}
        params = [key for key in self.tensors if key.startswith("backbone/params/")]
        return {
            "architecture": {key: options[key] for key in options if key not in fixed},
            "layout": self.layout,
            "kind": self.kind,
            "image_shape": [network.side, network.side],
            "crop_fraction": network.crop_fraction,
            "interpolation": network.interpolation,
            "parameters": sum(self.tensors[path].size for path in params),
            "source": source,
            "source_sha256": dict(digests),
        }


def convert(files: Mapping[str, StateDict], checkpoints: Collection[Checkpoint] = ()) -> Converted:
    """Assigns a path to every tensor of the files; a WeightsError names tensors that do not fit.

    `checkpoints` are the layouts of authors' checkpoints that are recognised besides backbones.
    """
    files = {  # torch.nn.DataParallel adds the prefix
        name: {key.removeprefix("module."): tensor for key, tensor in tensors.items()}
        for name, tensors in files.items()
    }
    known = [(made, network) for made in checkpoints if (network := made.network)]
    pairs = [(name, found) for name in files for found in known]
    networks = {name: found for name, found in pairs if found[1].marker in files[name]}
    backbones = [name for name in files if name not in networks]
    if len(backbones) != 1 or len(networks) > 1:
        methods = " or ".join(made.method for made, _ in known)
        beside = f" and at most one with the network of {methods}" if methods else ""
        raise WeightsError(f"{', '.join(files)}: must be one file with a backbone{beside}")
    converted = _convert_backbone(files[backbones[0]], backbones[0], checkpoints)
    for name, (made, network) in networks.items():
        converted.tensors.update(network.convert(files[name], name))
        converted = converted._replace(kind=f"{made.method}, with its {network.name}")
    return converted


def _recognise(
    tensors: StateDict, source: str, unused: tuple[str, ...]
) -> tuple[str, Network, StateDict]:
    """(layout, network, tensors under the names of `torch_name`), without unused tensors."""
    networks = [plugin_module("backbone", name) for name in choices("backbone")]
    layouts = [layout for network in networks for layout in getattr(network, "LAYOUTS", ())]
    for library, marker, read, rules in layouts:
        found = [key for key in tensors if f".{key}".endswith(f".{marker}")]
        if not found:
            continue
        prefix = min(found, key=len).removesuffix(marker)
        renamed = rename({key.removeprefix(prefix): tensors[key] for key in tensors}, rules)
        kept = {key: tensor for key, tensor in renamed.items() if not key.startswith(unused)}
        kept = {key: kept[key] for key in kept if not key.endswith("num_batches_tracked")}
        try:
            return library, read(kept), kept
        except (ConfigError, KeyError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else error
            message = f"{source}: looks like {library}'s weights, but {problem}"
            raise WeightsError(message) from None
    names = ", ".join(list(tensors)[:3])
    raise WeightsError(
        f"{source}: contains none of the known networks (its first tensors are {names}); give "
        "weights of a network that docs/topics/backbones.md lists, or the import path of another "
        "library's network as backbone.name"
    )


def rename(tensors: StateDict, rules: tuple[Rule, ...]) -> StateDict:
    """The tensors under the names that result from the rules; joins parts, see `Layout`."""
    result: StateDict = {}
    parts: dict[str, StateDict] = {}
    for key, tensor in tensors.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if "@" in key:
            parts.setdefault(re.sub(r"@\d", "", key), {})[key] = tensor
        else:
            result[key] = tensor
    for whole, named in parts.items():
        result[whole] = np.concatenate([named[key] for key in sorted(named)])
    return result


def _convert_backbone(
    file: StateDict, source: str, checkpoints: Collection[Checkpoint]
) -> Converted:
    unused = UNUSED + tuple(name for made in checkpoints for name in made.repeated)
    layout, network, tensors = _recognise(file, source, unused)
    backbone = plugin_module("backbone", network.config.name).build(network.config)
    images = (network.side, network.side)
    params, stats = jax.eval_shape(lambda: backbone.init(jax.random.key(0), images))
    shapes = leaf_shapes({"backbone": {"params": params, "stats": stats}})
    keys = {path: tuple(path.split("/")[2:]) for path in shapes}  # without backbone/params
    torch_names = {path: torch_name(network.config.name, keys[path]) for path in shapes}
    names = set(torch_names.values())
    others = {name: tensor for name, tensor in tensors.items() if name not in names}
    heads, kind = _heads(network.config, others, checkpoints)
    expected = {name: torch_shape(keys[path], shapes[path]) for path, name in torch_names.items()}
    found = {name: tensor for name, tensor in tensors.items() if name not in heads}
    for name, shape in expected.items():
        # Batch norms in Cadene's files have an additional axis.
        if len(shape) == 1 and name in found and found[name].shape == (1, *shape):
            found[name] = found[name][0]
    check_shapes(source, expected, {name: tensor.shape for name, tensor in found.items()})
    converted = {path: to_jax_axes(keys[path], found[name]) for path, name in torch_names.items()}
    return Converted(layout, network, converted | dict(heads.values()), kind)


def _heads(
    config: Config, tensors: StateDict, checkpoints: Collection[Checkpoint]
) -> tuple[dict[str, tuple[str, np.ndarray]], str]:
    """The layers on top of the backbone: torch name -> (path, array); and the checkpoint's kind."""

    def identified(made: Checkpoint) -> bool:
        return any(re.fullmatch(rf"(?:{made.heads[0].module})\.weight", name) for name in tensors)

    network = plugin_module("backbone", config.name)
    channels = network.build(config).channels
    # A method's authors may use the name of an ImageNet classifier for another layer.
    rules = [(head, made.method) for made in checkpoints if identified(made) for head in made.heads]
    classifiers = dict.fromkeys((*network.CLASSIFIERS, "fc"))
    rules += [(Head(re.escape(name), f"classifier/{name}"), "") for name in classifiers]
    heads: dict[str, tuple[str, np.ndarray]] = {}
    kind = "backbone"
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        matching = (rule for rule in rules if re.fullmatch(rule[0].module, owner))
        head, method = next(matching, (None, ""))
        if head is None or tensor.ndim != {"weight": 2, "bias": 1}.get(leaf):
            continue
        if leaf == "weight" and head.on_features and tensor.shape[1] != channels:
            continue
        layer, leaf = re.sub(head.module, head.path, owner), "kernel" if leaf == "weight" else leaf
        heads[name] = f"{layer}/{leaf}", to_jax_axes((leaf,), tensor)
        kind = method or kind
    return heads, kind
