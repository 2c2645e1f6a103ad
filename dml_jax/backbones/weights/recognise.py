"""Recognising published weights: the network they belong to, and the library that named their tensors."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from dml_jax.backbones.contract import Config
from dml_jax.backbones.weights.layouts import Layout, MissingTensor, Rule, StateDict
from dml_jax.backbones.weights.tensor_files import Tensor, concatenate
from dml_jax.config.modules import choices, module
from dml_jax.errors import ConfigError, WeightsError

# Tensors of widely used networks that are not among the supported ones, for the error message; the first that is found
# names the network.
OTHERS = (
    ("storage_tokens", "DINOv3 in its authors' layout, where that of timm or transformers is needed"),
    ("blocks.0.mlp.fc1_g.weight", "EVA-02 or a DINOv3 with gated MLPs"),
    ("layer.0.mlp.gate_proj.weight", "a DINOv3 with gated MLPs", "embeddings.position_embeddings"),  # of DINOv2
    ("layers.0.blocks.0.attn.relative_position_bias_table", "Swin"),
    ("layers.0.blocks.0.attention.self.relative_position_bias_table", "Swin"),
    ("relative_position_bias_table", "BEiT"),
    ("class_embedding", "CLIP"),
    ("stages.0.blocks.0.conv_dw.weight", "ConvNeXt"),
    ("stages.0.layers.0.dwconv.weight", "ConvNeXt"),
    ("stages.0.0.dwconv.weight", "ConvNeXt"),
    ("features.1.0.block.0.weight", "ConvNeXt"),
    ("blocks.0.0.conv_dw.weight", "EfficientNet or MobileNet of timm"),
)


class Weights(NamedTuple):
    """A recognised state_dict."""

    layout: str  # library or authors whose names the file uses, for messages
    config: Config
    # (height, width) of the images that the position embeddings were learned for. Networks without position embeddings
    # accept any size.
    image_shape: tuple[int, int]
    tensors: StateDict  # backbone and heads, under the names of `torch_names.torch_name`
    # crop_fraction, interpolation: see `layouts.Network`
    crop_fraction: float
    interpolation: Literal["bilinear", "bicubic"]


def recognise(tensors: Mapping[str, Tensor], source: str) -> Weights:
    """Determines layout, network and name prefix of a state_dict; messages name `source`, the file."""
    other = next(
        (
            network
            for marker, network, *known in OTHERS
            if _having(tensors, marker) and not any(_having(tensors, name) for name in known)
        ),
        "",
    )
    if other:
        raise WeightsError(
            f"{source}: looks like {other}, which cannot be converted; give weights of a network that "
            "docs/topics/backbones.md lists, or the import path of another library's network as backbone.name"
        )
    for layout in _layouts():
        found = _having(tensors, layout.marker)
        if found:
            prefix = min(found, key=len).removesuffix(layout.marker)
            renamed = _renamed({key.removeprefix(prefix): value for key, value in tensors.items()}, layout.rules)
            kept = {key: value for key, value in renamed.items() if not _is_unused(key)}
            try:
                network = layout.read(kept)
            except MissingTensor as error:
                raise WeightsError(f"{source}: missing: {error.name}") from None
            except ConfigError as error:
                raise WeightsError(f"{source}: looks like {layout.library}'s weights, but {error}") from None
            shape = (network.side, network.side)
            return Weights(layout.library, network.config, shape, kept, network.crop_fraction, network.interpolation)
    names = ", ".join(list(tensors)[:3])
    raise WeightsError(f"{source}: contains none of the known networks (its first tensors are {names})")


def _having(tensors: Mapping[str, Tensor], name: str) -> list[str]:
    """The names of the tensors that are called so, below any prefix."""
    return [key for key in tensors if key == name or key.endswith(f".{name}")]


def _layouts() -> Iterator[Layout]:
    for name in choices("backbone"):
        yield from getattr(module("backbone", name), "LAYOUTS", ())


def _is_unused(key: str) -> bool:
    """Whether no backbone has a tensor of this name."""
    # GoogLeNet's auxiliary classifiers, the blocks that DiVA's checkpoints contain under two names, the layers that
    # vision transformers have for their pretraining only, and the text towers beside image towers.
    unused = ("aux1.", "aux2.", "layer_blocks.", "pooler.", "mask_token", "text_model.", "logit_scale", "logit_bias")
    return key.endswith("num_batches_tracked") or key.startswith(unused)


def _renamed(tensors: StateDict, rules: tuple[Rule, ...]) -> StateDict:
    """Applies all rules of a layout."""
    result: StateDict = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if "@" in key:
            parts.setdefault(re.sub(r"@\d", "", key), {})[key] = tensor
        else:
            result[key] = tensor
    return result | {whole: concatenate([named[key] for key in sorted(named)]) for whole, named in parts.items()}
