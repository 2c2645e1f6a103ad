"""Recognising published weights: the network they belong to, and the library that named their tensors."""

import math
import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np

from dml_jax.backbones import bn_inception, deit, efficientnet_lite, googlenet, mit, resnet, vit
from dml_jax.backbones.pixels import Pixels
from dml_jax.backbones.weights.tensor_files import Tensor, concatenate
from dml_jax.errors import ConfigError, WeightsError

StateDict = dict[str, Tensor]
BackboneConfig = (
    bn_inception.Config
    | deit.Config
    | efficientnet_lite.Config
    | googlenet.Config
    | mit.Config
    | resnet.Config
    | vit.Config
)
ReadConfig = Callable[[StateDict], tuple[BackboneConfig, tuple[int, int]]]  # also (height, width) of the images


class Weights(NamedTuple):
    """A recognised state_dict.

    Attributes:
      layout: library or authors whose names the file uses, for messages.
      config: of the network, as the backbone modules define it.
      image_shape: (height, width) of the images that the position embeddings were learned for. Networks without
        position embeddings accept any size.
      tensors: backbone and heads, under the names of `torch_names.torch_name`.
    """

    layout: str
    config: BackboneConfig
    image_shape: tuple[int, int]
    tensors: StateDict

    @property
    def crop_fraction(self) -> float:
        """Side of the centre crop with which the published accuracy was measured, divided by the resized image's."""
        sizes = {efficientnet_lite.lite1(): 0.882, efficientnet_lite.lite2(): 0.890}
        return sizes.get(self.config, 0.875)  # type: ignore[arg-type]  # of another network: not among them

    @property
    def interpolation(self) -> Literal["bilinear", "bicubic"]:
        """How images were resized for it."""
        return "bilinear" if self.config.name in ("resnet", "googlenet", "bn_inception") else "bicubic"


def recognise(tensors: Mapping[str, Tensor], source: str) -> Weights:
    """Determines layout, network and name prefix of a state_dict.

    Args:
      tensors: as returned by `tensor_files.read`.
      source: name of the file, for messages.

    Raises:
      WeightsError: the network is unknown, or a tensor that determines its size is missing.
    """
    for layout, marker, rules, read_config in _LAYOUTS:
        found = [key for key in tensors if key == marker or key.endswith(f".{marker}")]
        if found:
            prefix = min(found, key=len).removesuffix(marker)
            renamed = _renamed({key.removeprefix(prefix): value for key, value in tensors.items()}, rules)
            kept = {key: value for key, value in renamed.items() if not _is_unused(key)}
            try:
                config, image_shape = read_config(kept)
            except _MissingTensor as error:
                raise WeightsError(f"{source}: missing: {error.name}") from None
            except ConfigError as error:
                raise WeightsError(f"{source}: looks like {layout}'s weights, but {error}") from None
            return Weights(layout, config, image_shape, kept)
    names = ", ".join(list(tensors)[:3])
    raise WeightsError(f"{source}: contains none of the known networks (its first tensors are {names})")


class _MissingTensor(Exception):
    """A tensor that determines the size of the network is missing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _is_unused(key: str) -> bool:
    """Counters, GoogLeNet's auxiliary classifiers, the blocks that DiVA's checkpoints contain under two names, and the
    layers that vision transformers have for their pretraining only."""
    unused = ("aux1.", "aux2.", "layer_blocks.", "pooler.", "mask_token")
    return key.endswith("num_batches_tracked") or key.startswith(unused)


# Configurations, derived from the tensors: from one-dimensional ones, so that a transposed kernel does not lead to a
# wrong configuration but is reported as a wrong shape.


def _count(tensors: StateDict, name: Callable[[int], str]) -> int:
    return next(n for n in range(len(tensors) + 1) if name(n) not in tensors)


def _length(tensors: StateDict, name: str) -> int:
    if name not in tensors:
        raise _MissingTensor(name)
    return max(1, math.prod(tensors[name].shape))


def _resnet(tensors: StateDict) -> tuple[BackboneConfig, tuple[int, int]]:
    stages = range(1, 1 + _count(tensors, lambda s: f"layer{s + 1}.0.conv1.weight"))
    stem = tensors["conv1.weight"].shape[-1:] if "conv1.weight" in tensors else ()
    config = resnet.Config(
        block="bottleneck" if "layer1.0.conv3.weight" in tensors else "basic",
        depths=tuple(_count(tensors, lambda b, s=s: f"layer{s}.{b}.conv1.weight") for s in stages),  # type: ignore[misc]
        widths=tuple(_length(tensors, f"layer{s}.0.bn1.weight") for s in stages),
        stem="small" if stem == (3,) else "imagenet",
    )
    return config, (224, 224)


def _vit(interpolation: vit.Interpolation) -> ReadConfig:
    """The function that derives the configuration of a vision transformer whose library interpolates like this.

    A plain one is taken for a DeiT: its tensors do not tell how it was trained.
    """

    def read(tensors: StateDict) -> tuple[BackboneConfig, tuple[int, int]]:
        width, distilled = _length(tensors, "norm.weight"), "dist_token" in tensors
        patch = (tensors["patch_embed.proj.weight"].shape or (16,))[-1] if "patch_embed.proj.weight" in tensors else 16
        registers = _length(tensors, "reg_token") // width if "reg_token" in tensors else 0
        options: dict[str, Any] = {
            "distilled": distilled,
            "registers": registers,
            "depth": _count(tensors, lambda i: f"blocks.{i}.norm1.weight"),
            "width": width,
            "heads": max(1, width // 64),  # all published networks have heads of 64 channels
            "patch": patch,
            "mlp": "gelu" if _length(tensors, "blocks.0.mlp.fc1.bias") == 4 * width else "swiglu",
            "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
            "interpolation": "antialiased" if registers else interpolation,
        }
        positions = _length(tensors, "pos_embed") // width
        if registers and math.isqrt(positions) ** 2 == positions:  # timm adds the class token's position to the token
            tensors["pos_embed"] = _with_zero_position(tensors["pos_embed"])
            positions += 1
        side = math.isqrt(max(positions - (2 if distilled else 1), 1)) * patch
        plain = not registers and not options["layer_scale"] and options["mlp"] == "gelu"
        config = deit.Config(**options) if plain else vit.Config(**options, pixels=Pixels())
        return config, (side, side)

    return read


def _with_zero_position(positions: Tensor) -> Tensor:
    """Positions [1, N, C] after one of zeros."""
    _, count, width = positions.shape
    return Tensor((1, count + 1, width), lambda: np.pad(positions.read(), ((0, 0), (1, 0), (0, 0))))


def _mit(tensors: StateDict) -> tuple[BackboneConfig, tuple[int, int]]:
    stages = (1, 2, 3, 4)

    def reduction(stage: int) -> int:
        kernel = tensors.get(f"block{stage}.0.attn.sr.weight")
        return kernel.shape[-1] if kernel is not None and kernel.shape else 1

    config = mit.Config(
        depths=tuple(_count(tensors, lambda i, s=s: f"block{s}.{i}.norm1.weight") for s in stages),  # type: ignore
        widths=tuple(_length(tensors, f"norm{s}.weight") for s in stages),  # type: ignore[arg-type]
        reductions=tuple(reduction(s) for s in stages),  # type: ignore[arg-type]
    )
    return config, (224, 224)


def _efficientnet_lite(tensors: StateDict) -> tuple[BackboneConfig, tuple[int, int]]:
    blocks = range(_count(tensors, lambda i: f"_blocks.{i}._bn2.weight"))
    widths = [_length(tensors, f"_blocks.{i}._bn2.weight") for i in blocks]
    stages = {width: len(list(group)) for width, group in groupby(widths)}  # each stage is wider than the one before
    config = efficientnet_lite.Config(
        depths=tuple(stages.values()),
        widths=tuple(stages),
        stem=_length(tensors, "_bn0.weight"),
        channels=_length(tensors, "_bn1.weight"),
    )
    side = {efficientnet_lite.lite1(): 240, efficientnet_lite.lite2(): 260}.get(config, 224)
    return config, (side, side)


def _fixed(config: BackboneConfig) -> ReadConfig:
    return lambda tensors: (config, (224, 224))


# Names.

Rule = tuple[str, str | Callable[[re.Match[str]], str]]


def _numbered(template: str) -> Callable[[re.Match[str]], str]:
    """`template` with the first group plus one: Hugging Face counts from 0 where the authors count from 1."""
    return lambda match: template.format(int(match[1]) + 1)


def _renamed(tensors: StateDict, rules: list[Rule]) -> StateDict:
    """Applies all rules, in order, to all names. Tensors called `name@0.leaf`, `name@1.leaf`, … are concatenated."""
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


_HUGGING_FACE_MIT: list[Rule] = [
    (r"^encoder\.", ""),
    (r"^classifier\.", "head."),
    (r"^patch_embeddings\.(\d)\.", _numbered("patch_embed{}.")),
    (r"^layer_norm\.(\d)", _numbered("norm{}")),
    (r"^block\.(\d)", _numbered("block{}")),
    (r"\.attention\.self\.query", ".attn.q"),
    (r"\.attention\.self\.key", ".attn.kv@0"),
    (r"\.attention\.self\.value", ".attn.kv@1"),
    (r"\.attention\.self\.sr", ".attn.sr"),
    (r"\.attention\.self\.layer_norm", ".attn.norm"),
    (r"\.attention\.output\.dense", ".attn.proj"),
    (r"\.layer_norm_(\d)", r".norm\1"),
    (r"(patch_embed\d)\.layer_norm", r"\1.norm"),
    (r"\.mlp\.dense", ".mlp.fc"),
]

_TRANSFORMERS_5_MIT: list[Rule] = [
    (r"^classifier\.", "head."),
    (r"^stages\.(\d)\.patch_embeddings\.layer_norm", _numbered("patch_embed{}.norm")),
    (r"^stages\.(\d)\.patch_embeddings", _numbered("patch_embed{}")),
    (r"^stages\.(\d)\.layer_norm", _numbered("norm{}")),
    (r"^stages\.(\d)\.blocks", _numbered("block{}")),
    (r"\.attention\.q_proj", ".attn.q"),
    (r"\.attention\.k_proj", ".attn.kv@0"),
    (r"\.attention\.v_proj", ".attn.kv@1"),
    (r"\.attention\.o_proj", ".attn.proj"),
    (r"\.attention\.sequence_reduction\.sequence_reduction", ".attn.sr"),
    (r"\.attention\.sequence_reduction\.layer_norm", ".attn.norm"),
    (r"\.layernorm_before", ".norm1"),
    (r"\.layernorm_after", ".norm2"),
]

# ViT, DeiT, DINOv2 with and without registers; the names of transformers 4, which the hub has, and of transformers 5.
_HUGGING_FACE_VIT: list[Rule] = [
    (r"^(cls_classifier|classifier)\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
    (r"^embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^embeddings\.distillation_token", "dist_token"),
    (r"^embeddings\.register_tokens", "reg_token"),
    (r"^embeddings\.position_embeddings", "pos_embed"),
    (r"^embeddings\.", ""),
    (r"^(encoder\.layer|layers)\.", "blocks."),
    (r"\.attention\.(attention\.query|q_proj)", ".attn.qkv@0"),
    (r"\.attention\.(attention\.key|k_proj)", ".attn.qkv@1"),
    (r"\.attention\.(attention\.value|v_proj)", ".attn.qkv@2"),
    (r"\.attention\.(output\.dense|o_proj)", ".attn.proj"),
    (r"\.layernorm_before", ".norm1"),
    (r"\.layernorm_after", ".norm2"),
    (r"\.layer_scale(\d)\.lambda1", r".ls\1.gamma"),
    (r"\.intermediate\.dense|\.mlp\.weights_in", ".mlp.fc1"),
    (r"^(blocks\.\d+)\.output\.dense", r"\1.mlp.fc2"),
    (r"\.mlp\.gate_proj", ".mlp.fc1@0"),
    (r"\.mlp\.up_proj", ".mlp.fc1@1"),
    (r"\.mlp\.(weights_out|down_proj)", ".mlp.fc2"),
    (r"^layernorm\.", "norm."),
]

_DINOV2: list[Rule] = [
    (r"^register_tokens", "reg_token"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
]

_HUGGING_FACE_RESNET: list[Rule] = [
    (r"^classifier\.1\.", "fc."),
    (r"^embedder\.embedder\.convolution", "conv1"),
    (r"^embedder\.embedder\.normalization", "bn1"),
    (r"^encoder\.stages\.(\d)\.layers", _numbered("layer{}")),
    (r"shortcut\.convolution", "downsample.0"),
    (r"shortcut\.normalization", "downsample.1"),
    (r"layer\.(\d)\.convolution", _numbered("conv{}")),
    (r"layer\.(\d)\.normalization", _numbered("bn{}")),
]

# (layout, a tensor that identifies it, rules that rename its tensors, function that derives the configuration)
_LAYOUTS: list[tuple[str, str, list[Rule], ReadConfig]] = [
    ("torchvision", "layer1.0.conv1.weight", [], _resnet),
    ("torchvision", "inception3a.branch1.conv.weight", [], _fixed(googlenet.Config())),
    ("efficientnet_lite_pytorch", "_blocks.0._depthwise_conv.weight", [], _efficientnet_lite),
    ("Cadene", "conv1_7x7_s2.weight", [], _fixed(bn_inception.Config())),
    ("SegFormer", "patch_embed1.proj.weight", [], _mit),
    ("Hugging Face", "encoder.patch_embeddings.0.proj.weight", _HUGGING_FACE_MIT, _mit),
    ("Hugging Face", "stages.0.patch_embeddings.proj.weight", _TRANSFORMERS_5_MIT, _mit),
    ("Hugging Face", "embeddings.patch_embeddings.projection.weight", _HUGGING_FACE_VIT, _vit("bicubic")),
    ("DINOv2", "mask_token", _DINOV2, _vit("offset")),
    ("timm", "blocks.0.attn.qkv.weight", [], _vit("antialiased")),
    ("Hugging Face", "embedder.embedder.convolution.weight", _HUGGING_FACE_RESNET, _resnet),
]
