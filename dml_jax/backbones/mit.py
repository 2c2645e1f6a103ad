"""SegFormer: semantic segmentation with transformers (Xie et al., NeurIPS 2021).

Its encoder, the Mix Transformer (MiT): four stages with overlapping patches, attention with keys
and values from a downsampled map, and a 3x3 depthwise convolution in the MLP instead of positional
embeddings. The feature map is the output of stage 4 after its norm, at 1/32.

Parameters without the classifier: B0 3,319,392, B1 13,151,424, B2 24,196,288. Initialised as by the
authors, without truncation: convolutions N(0, 2 / fan out), linear N(0, 0.02^2), biases 0.
"""

import re
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax

from dml_jax.backbones import contract
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.functional import as_backbone
from dml_jax.backbones.layers import (
    Conv,
    DropPath,
    LayerNorm,
    attention,
    compute_dtype,
    gelu,
    require_size,
    transformer_dense,
)
from dml_jax.backbones.weights.convert import Layout, Network, Rule, count, length, numbered
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.fields import Fraction, Mark, PositiveInt, Rules, require, section
from dml_jax.config.sections import backbone_is_frozen

Stages = tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]


@section
class Config(contract.Config):
    """Options of a Mix Transformer; the defaults are MiT-B1.

    Attributes:
      depths: Number of blocks of each stage.
      widths: Channels of each stage; multiples of `heads`.
      heads: Attention heads per block of each stage.
      drop_path: Rate of stochastic depth in the last block; it increases linearly from 0 in the
        first.
    """

    name: str = "mit"
    depths: Stages = (2, 2, 2, 2)
    widths: Stages = (64, 128, 320, 512)
    heads: Stages = (1, 2, 5, 8)
    drop_path: Annotated[Fraction, Mark.TRAINING] = 0.1

    def __post_init__(self) -> None:
        divisible = not any(w % h for w, h in zip(self.widths, self.heads, strict=True))
        require(divisible, "widths", self.widths, f"must be multiples of heads={self.heads}")

    def inert(self, config: Any) -> Rules:
        """When options have an effect; see `config.fields.inert`."""
        return ((not backbone_is_frozen(config), "a backbone that is trained", "drop_path"),)


REDUCTIONS = (8, 4, 2, 1)  # downsampling of the map for keys and values in each stage
OUTER = 1e-6  # epsilon of the norms before attention and MLP and at the end of each stage
INNER = 1e-5  # epsilon of the norms inside patch embedding and attention


class Attention(nn.Module):
    """Multi-head attention from each position to a map downsampled by `reduction`."""

    config: Config
    heads: int
    reduction: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, H, W, C]."""
        dtype = compute_dtype(self.config.dtype)
        batch, height, width, channels = x.shape
        queries = transformer_dense(channels, dtype=dtype, name="q")(x)
        if self.reduction > 1:
            downsample = partial(Conv, use_bias=True, dtype=dtype, name="sr")
            x = downsample(channels, self.reduction, self.reduction)(x)
            x = LayerNorm(INNER, dtype=dtype, name="norm")(x)
        keys_values = transformer_dense(2 * channels, dtype=dtype, name="kv")(x)
        keys_values = keys_values.reshape(batch, -1, 2, self.heads, channels // self.heads)
        queries = queries.reshape(batch, -1, self.heads, channels // self.heads)
        mixed = attention(queries, keys_values[:, :, 0], keys_values[:, :, 1])
        mixed = mixed.reshape(batch, height, width, channels)
        return transformer_dense(channels, dtype=dtype, name="proj")(mixed)


class Mlp(nn.Module):
    """Two linear layers with a depthwise convolution and a GELU between them."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, H, W, C]."""
        dtype, channels = compute_dtype(self.config.dtype), x.shape[-1]
        hidden = 4 * channels
        y = transformer_dense(hidden, dtype=dtype, name="fc1")(x)
        depthwise = partial(Conv, use_bias=True, groups=hidden, dtype=dtype, name="dwconv")
        y = depthwise(hidden, 3, padding=1)(y)
        return transformer_dense(channels, dtype=dtype, name="fc2")(gelu(y))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    config: Config
    heads: int
    reduction: int
    drop_path: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, H, W, C]."""
        dtype = compute_dtype(self.config.dtype)
        y = LayerNorm(OUTER, dtype=dtype, name="norm1")(x)
        y = Attention(self.config, self.heads, self.reduction, name="attn")(y)
        x = x + DropPath(self.drop_path)(y)
        y = LayerNorm(OUTER, dtype=dtype, name="norm2")(x)
        return x + DropPath(self.drop_path)(Mlp(self.config, name="mlp")(y))


class PatchEmbed(nn.Module):
    """Embeds overlapping patches by a strided convolution and a norm."""

    config: Config
    channels: int
    size: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float [B, H, W, C] -> float [B, ceil(H/stride), ceil(W/stride), channels]."""
        dtype = compute_dtype(self.config.dtype)
        project = partial(Conv, use_bias=True, dtype=dtype, name="proj")
        x = project(self.channels, self.size, self.stride, self.size // 2)(x)
        return LayerNorm(INNER, dtype=dtype, name="norm")(x)


class MixTransformer(nn.Module):
    """The encoder."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, h, w, widths[-1]]."""
        config = self.config
        images, total, position = x, sum(config.depths), 0
        block = nn.remat(Block) if config.remat else Block
        for stage, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
            size, stride = (7, 4) if stage == 0 else (3, 2)
            x = PatchEmbed(config, width, size, stride, name=f"stage{stage + 1}_patch_embed")(x)
            fits = min(x.shape[1:3]) >= REDUCTIONS[stage]
            require_size(fits, images, f"too small for stage {stage + 1} of MiT; use larger images")
            for index in range(depth):
                rate = config.drop_path * position / max(total - 1, 1)
                name = f"stage{stage + 1}_block{index}"
                x = block(config, config.heads[stage], REDUCTIONS[stage], rate, name=name)(x)
                position += 1
            dtype = compute_dtype(config.dtype)
            x = LayerNorm(OUTER, dtype=dtype, name=f"stage{stage + 1}_norm")(x)
        return x


def build(config: Config) -> Backbone:
    """A Mix Transformer as a backbone."""
    return as_backbone(MixTransformer(config), config.widths[-1], config)


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in the SegFormer repository."""
    joined = re.sub(r"^stage(\d)_(patch_embed|norm)", r"\2\1", ".".join(modules))
    joined = re.sub(r"^stage(\d)_block(\d+)", r"block\1.\2", joined)
    return joined.replace("mlp.dwconv", "mlp.dwconv.dwconv")


def read_network(tensors: StateDict) -> Network:
    """The Mix Transformer with these tensors, in SegFormer's names."""
    stages = (1, 2, 3, 4)
    config = Config(
        depths=tuple(count(tensors, lambda i, s=s: f"block{s}.{i}.norm1.weight") for s in stages),  # type: ignore
        widths=tuple(length(tensors, f"norm{s}.weight") for s in stages),  # type: ignore[arg-type]
    )
    return Network(config)


HUGGING_FACE: tuple[Rule, ...] = (
    (r"^encoder\.", ""),
    (r"^classifier\.", "head."),
    (r"^patch_embeddings\.(\d)\.", numbered("patch_embed{}.")),
    (r"^layer_norm\.(\d)", numbered("norm{}")),
    (r"^block\.(\d)", numbered("block{}")),
    (r"\.attention\.self\.query", ".attn.q"),
    (r"\.attention\.self\.key", ".attn.kv@0"),
    (r"\.attention\.self\.value", ".attn.kv@1"),
    (r"\.attention\.self\.sr", ".attn.sr"),
    (r"\.attention\.self\.layer_norm", ".attn.norm"),
    (r"\.attention\.output\.dense", ".attn.proj"),
    (r"\.layer_norm_(\d)", r".norm\1"),
    (r"(patch_embed\d)\.layer_norm", r"\1.norm"),
    (r"\.mlp\.dense", ".mlp.fc"),
)
PUBLISHED = {
    "mit_b0": Config(widths=(32, 64, 160, 256)),
    "mit_b1": Config(),
    "mit_b2": Config(depths=(3, 4, 6, 3)),
}
CLASSIFIERS = ("head",)
UNSEEN = ("heads",)
LAYOUTS = [
    Layout("SegFormer", "patch_embed1.proj.weight", read_network),
    Layout("Hugging Face", "encoder.patch_embeddings.0.proj.weight", read_network, HUGGING_FACE),
]
