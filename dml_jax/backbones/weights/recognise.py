"""Recognising published weights: which network they belong to, and under which names they were saved."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.backbones.weights.tensor_files import Tensor, joined
from dml_jax.errors import WeightsError

TrainState = dict[str, Tensor]


class Weights(NamedTuple):
    """A recognised state_dict.

    Attributes:
      layout: whose names the file used, for messages.
      config: of the network the tensors belong to.
      image_shape: (height, width) of the images the positions were learned for; any other network takes all sizes.
      tensors: under the names `_names.torch_name` gives, backbone and heads.
    """

    layout: str
    config: Any
    image_shape: tuple[int, int]
    tensors: TrainState


def recognise(tensors: Mapping[str, Tensor], source: str) -> Weights:
    """Finds layout, network and prefix of a state_dict by the tensors it holds.

    Args:
      tensors: as `_files.read` returns them.
      source: name of the file, for messages.

    Raises:
      WeightsError: none of the known networks.
    """
    for layout, anchor, rules, describe in _LAYOUTS:
        found = [key for key in tensors if key == anchor or key.endswith(f".{anchor}")]
        if found:
            prefix = min(found, key=len).removesuffix(anchor)
            renamed = _renamed({key.removeprefix(prefix): value for key, value in tensors.items()}, rules)
            kept = {key: value for key, value in renamed.items() if not _is_ballast(key)}
            config, image_shape = describe(kept)
            return Weights(layout, config, image_shape, kept)
    names = ", ".join(list(tensors)[:3])
    raise WeightsError(f"{source}: holds none of the known networks (its tensors begin with {names})")


def _is_ballast(key: str) -> bool:
    """Counters; GoogLeNet's auxiliary classifiers; the second names DiVA's authors give to the same blocks."""
    return key.endswith("num_batches_tracked") or key.startswith(("aux1.", "aux2.", "layer_blocks."))


# Configurations, read off the tensors. One-dimensional ones: a transposed kernel cannot mislead them.


def _count(tensors: TrainState, name: Callable[[int], str]) -> int:
    return next(n for n in range(len(tensors) + 1) if name(n) not in tensors)


def _length(tensors: TrainState, name: str) -> int:
    if name not in tensors:
        raise WeightsError(f"missing: {name}")
    return max(1, math.prod(tensors[name].shape))


def _resnet(tensors: TrainState) -> tuple[Any, tuple[int, int]]:
    stages = range(1, 1 + _count(tensors, lambda s: f"layer{s + 1}.0.conv1.weight"))
    stem = tensors["conv1.weight"].shape[-1:] if "conv1.weight" in tensors else ()
    config = resnet.Config(
        block="bottleneck" if "layer1.0.conv3.weight" in tensors else "basic",
        depths=tuple(_count(tensors, lambda b, s=s: f"layer{s}.{b}.conv1.weight") for s in stages),  # type: ignore[misc]
        widths=tuple(_length(tensors, f"layer{s}.0.bn1.weight") for s in stages),
        stem="small" if stem == (3,) else "imagenet",
    )
    return config, (224, 224)


def _deit(tensors: TrainState) -> tuple[Any, tuple[int, int]]:
    width, distilled = _length(tensors, "norm.weight"), "dist_token" in tensors
    patch = (tensors["patch_embed.proj.weight"].shape or (16,))[-1] if "patch_embed.proj.weight" in tensors else 16
    config = deit.Config(
        distilled=distilled,
        depth=_count(tensors, lambda i: f"blocks.{i}.norm1.weight"),
        width=width,
        heads=max(1, width // 64),  # every DeiT has heads of 64 channels
        patch=patch,
    )
    positions = _length(tensors, "pos_embed") // width - (2 if distilled else 1)
    side = math.isqrt(max(positions, 1)) * patch
    return config, (side, side)


def _mit(tensors: TrainState) -> tuple[Any, tuple[int, int]]:
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


def _fixed(config: Any) -> Callable[[TrainState], tuple[Any, tuple[int, int]]]:
    return lambda tensors: (config, (224, 224))


# Names.


Rule = tuple[str, str | Callable[[re.Match[str]], str]]


def _numbered(template: str) -> Callable[[re.Match[str]], str]:
    """Hugging Face counts from 0 where the authors count from 1: `template` with the first group plus one."""
    return lambda match: template.format(int(match[1]) + 1)


def _renamed(tensors: TrainState, rules: list[Rule]) -> TrainState:
    """Every rule applied to every name, in order. Tensors called `name@0.leaf`, `name@1.leaf`, ... become one."""
    result: TrainState = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if "@" in key:
            parts.setdefault(re.sub(r"@\d", "", key), {})[key] = tensor
        else:
            result[key] = tensor
    return result | {whole: joined([named[key] for key in sorted(named)]) for whole, named in parts.items()}


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

_HUGGING_FACE_VIT: list[Rule] = [
    (r"^(cls_classifier|classifier)\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
    (r"^embeddings\.cls_token", "cls_token"),
    (r"^embeddings\.distillation_token", "dist_token"),
    (r"^embeddings\.position_embeddings", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^encoder\.layer\.", "blocks."),
    (r"\.attention\.attention\.query", ".attn.qkv@0"),
    (r"\.attention\.attention\.key", ".attn.qkv@1"),
    (r"\.attention\.attention\.value", ".attn.qkv@2"),
    (r"\.attention\.output\.dense", ".attn.proj"),
    (r"\.layernorm_before", ".norm1"),
    (r"\.layernorm_after", ".norm2"),
    (r"\.intermediate\.dense", ".mlp.fc1"),
    (r"^(blocks\.\d+)\.output\.dense", r"\1.mlp.fc2"),
    (r"^layernorm\.", "norm."),
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

Describe = Callable[[TrainState], tuple[Any, tuple[int, int]]]

# Layout, a tensor that only it holds, the rules of its names, and what reads the configuration off its tensors.
_LAYOUTS: list[tuple[str, str, list[Rule], Describe]] = [
    ("torchvision", "layer1.0.conv1.weight", [], _resnet),
    ("torchvision", "inception3a.branch1.conv.weight", [], _fixed(googlenet.Config())),
    ("Cadene", "conv1_7x7_s2.weight", [], _fixed(bn_inception.Config())),
    ("timm", "blocks.0.attn.qkv.weight", [], _deit),
    ("SegFormer", "patch_embed1.proj.weight", [], _mit),
    ("Hugging Face", "encoder.patch_embeddings.0.proj.weight", _HUGGING_FACE_MIT, _mit),
    ("Hugging Face", "embeddings.patch_embeddings.projection.weight", _HUGGING_FACE_VIT, _deit),
    ("Hugging Face", "embedder.embedder.convolution.weight", _HUGGING_FACE_RESNET, _resnet),
]
