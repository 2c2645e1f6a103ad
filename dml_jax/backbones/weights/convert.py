"""Converting the tensors of published torch weights to arrays by path; every tensor must be accounted for.

A backbone module declares for `dml-jax convert`:

PUBLISHED        the published networks by name: dict[str, Config]
LAYOUTS          the names that libraries and authors give its tensors: list[Layout]
CLASSIFIERS      torch names of the ImageNet classifiers, which are not part of the backbone
torch_module     path of a module in `params` -> its torch name, in the layout without rules
UNSEEN           optional: options that change its features but not the shapes of its weights
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from dml_jax.backbones.contract import Config
from dml_jax.backbones.weights.store import Shape, check_shapes, leaf_shapes
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.modules import choices, module
from dml_jax.errors import ConfigError, WeightsError

Rule = tuple[str, str | Callable[[re.Match[str]], str]]  # pattern of a tensor's name, and its replacement

_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


class Network(NamedTuple):
    """A network that tensors belong to."""

    config: Config
    side: int = 224  # of images in pixels, for which positions were learned or the accuracy was published
    crop_fraction: float = 0.875  # of the resized image's side, with which the accuracy was measured
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"  # of that resizing


class Layout(NamedTuple):
    """The names of a network's tensors in a library or in the authors' code.

    `read` derives the network from the renamed tensors. It should look at one-dimensional ones, so that a transposed
    kernel does not lead to a wrong configuration but is reported as a wrong shape. Tensors that the rules rename to
    `name@0.leaf`, `name@1.leaf`, … are concatenated.
    """

    library: str  # for messages
    marker: str  # a tensor that identifies the layout
    read: Callable[[StateDict], Network]
    rules: tuple[Rule, ...] = ()  # from the names to the names of `torch_module`, in order


def count(tensors: StateDict, name: Callable[[int], str]) -> int:
    """How many of the numbered tensors name(0), name(1), … there are."""
    return next(n for n in range(len(tensors) + 1) if name(n) not in tensors)


def length(tensors: StateDict, name: str) -> int:
    """Number of elements of a tensor, at least 1."""
    return max(1, math.prod(tensors[name].shape))


def transformer_sizes(tensors: StateDict) -> dict[str, Any]:
    """`depth`, `width` and `patch` of a vision transformer; an unknown patch is 16, to be reported as a wrong shape."""
    kernel = tensors.get("patch_embed.proj.weight")
    return {
        "depth": count(tensors, lambda i: f"blocks.{i}.norm1.weight"),
        "width": length(tensors, "norm.weight"),
        "patch": kernel.shape[-1] if kernel is not None and kernel.shape else 16,
    }


def numbered(template: str) -> Callable[[re.Match[str]], str]:
    """`template` with the first group plus one: Hugging Face counts from 0 where the authors count from 1."""
    return lambda match: template.format(int(match[1]) + 1)


def dotted(modules: str) -> str:
    """Indices as in torch's nn.Sequential: layer1_0 -> layer1.0."""
    return re.sub(r"_(\d+)", r".\1", modules)


def torch_name(architecture: str, path: tuple[str, ...]) -> str:
    """The name of a leaf of `params` or `stats`, e.g. ("layer1_0", "conv1", "kernel"), in `torch_module`'s library."""
    modules = module("backbone", architecture).torch_module(path[:-1])
    leaf = _LEAVES.get(path[-1], path[-1])
    return f"{modules}.{leaf}" if modules else leaf


# Kernels of convolutions are [out, in, height, width] in torch and [height, width, in, out] in JAX; those of linear
# layers are [out, in] and [in, out].


def to_jax_axes(path: tuple[str, ...], tensor: np.ndarray) -> np.ndarray:
    """A torch tensor with its axes in JAX order; only kernels differ."""
    if path[-1] != "kernel":
        return tensor
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def torch_shape(path: tuple[str, ...], shape: Shape) -> Shape:
    """The shape in torch's axis order of an array with this shape in JAX order."""
    if path[-1] != "kernel":
        return shape
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]


MPN_TENSOR = "gnn_model.node_model.layers.0.att.q_linear.weight"  # identifies a message passing network of MPN

MPN_RULES: tuple[Rule, ...] = (
    (r"^dim_red\.", "projection."),
    (r"^gnn_model\.node_model\.layers\.(\d+)\.", numbered("layer{}.")),
    (r"\.att\.q_linear", ".query"),
    (r"\.att\.k_linear", ".key_value@0"),
    (r"\.att\.v_linear", ".key_value@1"),
    (r"\.att\.out", ".output"),
    (r"\.linear(\d)", r".ff\1"),
    (r"^bottleneck\.0\.", "neck."),
    (r"^fc\.0\.", "classifier."),
)

# Tensors that no backbone has: GoogLeNet's auxiliary classifiers, the blocks that DiVA's checkpoints contain under two
# names, the layers that vision transformers have for their pretraining only, and the text towers beside image towers.
UNUSED = ("aux1.", "aux2.", "layer_blocks.", "pooler.", "mask_token", "text_model.", "logit_scale", "logit_bias")


class Converted(NamedTuple):
    """A recognised file, ready to be written."""

    layout: str  # library or authors whose names the file uses
    network: Network
    tensors: StateDict  # by path as in `store`, with their axes in JAX order
    kind: str  # content of the checkpoint

    def metadata(self, source: str, digests: Mapping[str, str]) -> dict[str, Any]:
        """Content of `weights.json`; `source` is the value of `--weights`, `digests` are SHA-256 by file name."""
        network = self.network
        config = asdict(network.config)
        sizes = {path: tensor.size for path, tensor in self.tensors.items()}
        return {
            "architecture": {k: v for k, v in config.items() if k not in ("pretrained", "remat", "dtype")},
            "layout": self.layout,
            "kind": self.kind,
            "image_shape": [network.side, network.side],
            "crop_fraction": network.crop_fraction,
            "interpolation": network.interpolation,
            "parameters": sum(size for path, size in sizes.items() if path.startswith("backbone/params/")),
            "source": source,
            "source_sha256": dict(digests),
        }


def convert(files: Mapping[str, StateDict]) -> Converted:
    """Assigns a path to every tensor of the files; raises a WeightsError that names tensors that do not fit."""
    files = {  # torch.nn.DataParallel adds the prefix
        name: {key.removeprefix("module."): tensor for key, tensor in tensors.items()}
        for name, tensors in files.items()
    }
    networks = [name for name, tensors in files.items() if MPN_TENSOR in tensors]
    backbones = [name for name in files if name not in networks]
    if len(backbones) != 1 or len(networks) > 1:
        raise WeightsError(
            f"{', '.join(files)}: must be one file with a backbone and at most one with the network of MPN"
        )
    converted = _convert_backbone(files[backbones[0]], backbones[0])
    for name in networks:
        converted.tensors.update(_convert_mpn(files[name], name))
    return converted if not networks else converted._replace(kind="MPN, with its message passing network")


def _recognise(tensors: StateDict, source: str) -> tuple[str, Network, StateDict]:
    """(layout, network, tensors under the names of `torch_name`) of a state_dict."""

    def having(name: str) -> list[str]:
        return [key for key in tensors if key == name or key.endswith(f".{name}")]

    for layout in (found for name in choices("backbone") for found in getattr(module("backbone", name), "LAYOUTS", ())):
        if not (found := having(layout.marker)):
            continue
        prefix = min(found, key=len).removesuffix(layout.marker)
        renamed = _renamed({key.removeprefix(prefix): value for key, value in tensors.items()}, layout.rules)
        kept = {k: v for k, v in renamed.items() if not (k.startswith(UNUSED) or k.endswith("num_batches_tracked"))}
        try:
            return layout.library, layout.read(kept), kept
        except (ConfigError, KeyError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else error
            raise WeightsError(f"{source}: looks like {layout.library}'s weights, but {problem}") from None
    names = ", ".join(list(tensors)[:3])
    raise WeightsError(
        f"{source}: contains none of the known networks (its first tensors are {names}); give weights of a network "
        "that docs/topics/backbones.md lists, or the import path of another library's network as backbone.name"
    )


def _renamed(tensors: StateDict, rules: tuple[Rule, ...]) -> StateDict:
    result: StateDict = {}
    parts: dict[str, StateDict] = {}
    for key, tensor in tensors.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if "@" in key:
            parts.setdefault(re.sub(r"@\d", "", key), {})[key] = tensor
        else:
            result[key] = tensor
    return result | {whole: np.concatenate([named[key] for key in sorted(named)]) for whole, named in parts.items()}


def _convert_backbone(file: StateDict, source: str) -> Converted:
    layout, network, tensors = _recognise(file, source)
    backbone = module("backbone", network.config.name).build(network.config)
    params, stats = jax.eval_shape(lambda: backbone.init(jax.random.key(0), (network.side, network.side)))
    shapes = leaf_shapes({"backbone": {"params": params, "stats": stats}})
    keys = {path: tuple(path.split("/")[2:]) for path in shapes}  # below backbone/params or backbone/stats
    torch_names = {path: torch_name(network.config.name, keys[path]) for path in shapes}
    names = set(torch_names.values())
    heads, kind = _heads(network.config, {name: tensor for name, tensor in tensors.items() if name not in names})
    expected = {name: torch_shape(keys[path], shapes[path]) for path, name in torch_names.items()}
    found = {name: tensor for name, tensor in tensors.items() if name not in heads}
    for name, shape in expected.items():
        if len(shape) == 1 and name in found and found[name].shape == (1, *shape):  # batch norms in Cadene's files
            found[name] = found[name][0]
    check_shapes(source, expected, {name: tensor.shape for name, tensor in found.items()})
    converted = {path: to_jax_axes(keys[path], found[name]) for path, name in torch_names.items()}
    return Converted(layout, network, converted | dict(heads.values()), kind)


def _heads(config: Config, tensors: StateDict) -> tuple[dict[str, tuple[str, np.ndarray]], str]:
    """The layers on top of the backbone: torch name -> (path, array), and the kind of checkpoint they imply."""
    # The classifier of ImageNet is kept. The authors of HIST add a layer `embedding`, those of DiVA one layer per task
    # under `last_linear`, those of MPN `red` (or `embed`) and an auxiliary classifier `fc`.
    reduced = any(f"{name}.weight" in tensors for name in ("red", "embed"))
    network = module("backbone", config.name)
    channels = network.build(config).channels
    # (pattern of the module's torch name, path, kind of checkpoint)
    rules: list[tuple[str, str, str]] = [
        (r"embedding", "method/params/embedding", "HIST"),
        (r"red|embed", "method/params/embedding", "MPN"),
        (r"last_linear\.(\w+)", r"method/params/heads/\1", "DiVA"),
        (r"fc", "method/params/auxiliary", "MPN") if reduced else (r"fc", "classifier/fc", ""),
        *((re.escape(name), f"classifier/{name}", "") for name in network.CLASSIFIERS if name != "fc"),
    ]
    heads: dict[str, tuple[str, np.ndarray]] = {}
    kind = "backbone"
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        rule = next((rule for rule in rules if re.fullmatch(rule[0], owner)), None)
        if rule is None or leaf not in ("weight", "bias") or tensor.ndim != (2 if leaf == "weight" else 1):
            continue
        layer = re.sub(rule[0], rule[1], owner)
        if leaf == "weight" and tensor.shape[1] != channels and not layer.endswith("auxiliary"):
            continue
        path = f"{layer}/{'kernel' if leaf == 'weight' else 'bias'}"
        heads[name] = path, to_jax_axes((path.rpartition("/")[2],), tensor)
        kind = rule[2] or kind
    return heads, kind


def _convert_mpn(file: StateDict, source: str) -> StateDict:
    """The message passing network of MPN, from the state_dict of the authors' class GNNReID.

    Its shapes are compared when a run starts from it.
    """
    tensors = _renamed(file, MPN_RULES)
    if np.any(tensors.pop("neck.bias", 0) != 0):
        raise WeightsError(f"{source}: bottleneck.0.bias is not zero, but MPN does not train this bias")
    converted = {}
    for name, tensor in tensors.items():
        if name.endswith("num_batches_tracked"):
            continue
        layer, _, leaf = name.replace(".", "/").rpartition("/")
        if leaf.startswith("running_"):
            converted[f"method/state/{layer}/{leaf.removeprefix('running_')}"] = tensor
            continue
        if leaf == "weight":
            leaf = "kernel" if tensor.ndim == 2 else "scale"
        converted[f"method/params/mpn/{layer}/{leaf}"] = to_jax_axes((leaf,), tensor)
    return converted
