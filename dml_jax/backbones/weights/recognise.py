"""Recognising published weights: the network they belong to, and the library that named their tensors."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from dml_jax.backbones.contract import Config
from dml_jax.backbones.weights.layouts import Layout, MissingTensor, Rule, StateDict
from dml_jax.backbones.weights.tensor_files import Tensor, concatenate
from dml_jax.config.modules import choices, module
from dml_jax.errors import ConfigError, WeightsError


class Weights(NamedTuple):
    """A recognised state_dict.

    Attributes:
      layout: library or authors whose names the file uses, for messages.
      image_shape: (height, width) of the images that the position embeddings were learned for. Networks without
        position embeddings accept any size.
      tensors: backbone and heads, under the names of `torch_names.torch_name`.
      crop_fraction, interpolation: see `layouts.Network`.
    """

    layout: str
    config: Config
    image_shape: tuple[int, int]
    tensors: StateDict
    crop_fraction: float
    interpolation: Literal["bilinear", "bicubic"]


def recognise(tensors: Mapping[str, Tensor], source: str) -> Weights:
    """Determines layout, network and name prefix of a state_dict; messages name `source`, the file."""
    for layout in _layouts():
        found = [key for key in tensors if key == layout.marker or key.endswith(f".{layout.marker}")]
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


def _layouts() -> Iterator[Layout]:
    for name in choices("backbone"):
        yield from getattr(module("backbone", name), "LAYOUTS", ())


def _is_unused(key: str) -> bool:
    """Whether no backbone has a tensor of this name."""
    # GoogLeNet's auxiliary classifiers, the blocks that DiVA's checkpoints contain under two names, and the layers that
    # vision transformers have for their pretraining only.
    unused = ("aux1.", "aux2.", "layer_blocks.", "pooler.", "mask_token")
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
