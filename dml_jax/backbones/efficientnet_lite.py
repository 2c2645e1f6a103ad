"""EfficientNet-Lite (Google, 2020): EfficientNet (Tan & Le, ICML 2019) for small processors.

It has no squeeze-and-excitation, and ReLU6 instead of swish; stem and head have the same width in
all sizes. A block is an inverted residual (Sandler et al., CVPR 2018): 1x1 expansion, depthwise
convolution, linear 1x1 projection. The feature map is the output of the head's 1x1 convolution,
after its ReLU6, at 1/32 of the image's resolution (rounded up).

Lite0, 1, 2: 3,371,008, 4,135,680 and 4,811,072 parameters without the classifier; ImageNet top-1
75.1, 76.7, 77.6 at 224, 240 and 260 pixels. Convolutions start as N(0, 2 / fan out).
"""

from functools import partial
from itertools import groupby
from typing import Annotated

import flax.linen as nn
import jax
from annotated_types import Len

from dml_jax.backbones.batch_norm import ConvolutionalConfig, batch_norm
from dml_jax.backbones.contract import Backbone, Pixels
from dml_jax.backbones.functional import as_backbone
from dml_jax.backbones.layers import Conv, compute_dtype
from dml_jax.backbones.weights.convert import Layout, Network, count, dotted, length
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.fields import Mark, PositiveInt, Probability, section

GOOGLE = Pixels(mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0), top=255.0)


@section
class Config(ConvolutionalConfig):
    """Options of an EfficientNet-Lite; the defaults are Lite0.

    Attributes:
      depths: Number of blocks of each stage.
      widths: Channels of each stage.
      stem: Channels of the first convolution.
      channels: Channels of the last convolution, and of the feature map.
      pretrained: "lite0" for the packaged weights, a directory of converted weights, or "none" for
        random initial weights.
    """

    name: str = "efficientnet_lite"
    depths: Annotated[tuple[PositiveInt, ...], Len(7, 7)] = (1, 2, 2, 3, 3, 4, 1)
    widths: Annotated[tuple[PositiveInt, ...], Len(7, 7)] = (16, 24, 40, 80, 112, 192, 320)
    stem: PositiveInt = 32
    channels: PositiveInt = 1280
    pretrained: str = "none"
    bn_momentum: Annotated[Probability, Mark.TRAINING] = 0.01
    pixels: Pixels = GOOGLE


PUBLISHED = {
    "lite0": Config(),
    "lite1": Config(depths=(1, 3, 3, 4, 4, 5, 1)),
    "lite2": Config(depths=(1, 3, 3, 4, 4, 5, 1), widths=(16, 24, 48, 88, 120, 208, 352)),
}
# Per stage: width inside a block / width of its input, size of kernels, stride of the first block.
EXPANSION = (1, 6, 6, 6, 6, 6, 6)
KERNELS = (3, 3, 5, 3, 5, 5, 3)
STRIDES = (1, 2, 2, 2, 1, 2, 1)


class Block(nn.Module):
    """x + f(x) if the shape stays the same, else f(x); f expands, filters channels and projects."""

    config: Config
    channels: int
    expansion: int
    kernel: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, ceil(H/stride), ceil(W/stride), channels]."""
        dtype = compute_dtype(self.config.dtype)
        expanded = self.expansion * x.shape[-1]
        norm = partial(batch_norm, self.config, epsilon=1e-3)
        y = x
        if self.expansion > 1:
            conv = Conv(expanded, 1, dtype=dtype, name="expand_conv")
            y = nn.relu6(norm("bn0")(y, train, conv))
        depthwise = partial(Conv, groups=expanded, dtype=dtype, name="depthwise_conv")
        conv = depthwise(expanded, self.kernel, self.stride, padding="SAME")
        y = nn.relu6(norm("bn1")(y, train, conv))
        y = norm("bn2")(y, train, Conv(self.channels, 1, dtype=dtype, name="project_conv"))
        return x + y if x.shape == y.shape else y


class EfficientNetLite(nn.Module):
    """The network without global pooling and classifier."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, h, w, channels]."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        conv = Conv(config.stem, 3, 2, padding="SAME", dtype=dtype, name="conv_stem")
        x = nn.relu6(batch_norm(config, "bn0", epsilon=1e-3)(x, train, conv))
        block = nn.remat(Block, static_argnums=(2,)) if config.remat else Block
        stages = zip(config.depths, config.widths, EXPANSION, KERNELS, STRIDES, strict=True)
        number = 0
        for depth, width, expansion, kernel, stride in stages:
            for index in range(depth):
                first, name = stride if index == 0 else 1, f"blocks_{number}"
                x = block(config, width, expansion, kernel, first, name=name)(x, train)
                number += 1
        conv = Conv(config.channels, 1, dtype=dtype, name="conv_head")
        return nn.relu6(batch_norm(config, "bn1", epsilon=1e-3)(x, train, conv))


def build(config: Config) -> Backbone:
    """An EfficientNet-Lite as a backbone."""
    return as_backbone(EfficientNetLite(config), config.channels, config)


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in the package efficientnet_lite_pytorch."""
    return ".".join(f"_{dotted(name)}" for name in modules)


def read_network(tensors: StateDict) -> Network:
    """The EfficientNet-Lite with these tensors."""
    blocks = range(count(tensors, lambda i: f"_blocks.{i}._bn2.weight"))
    widths = [length(tensors, f"_blocks.{i}._bn2.weight") for i in blocks]
    # Stages differ in width: each is wider than the one before.
    stages = {width: len(list(group)) for width, group in groupby(widths)}
    config = Config(
        depths=tuple(stages.values()),
        widths=tuple(stages),
        stem=length(tensors, "_bn0.weight"),
        channels=length(tensors, "_bn1.weight"),
    )
    published = {PUBLISHED["lite1"]: (240, 0.882), PUBLISHED["lite2"]: (260, 0.890)}
    return Network(config, *published.get(config, (224, 0.875)))


CLASSIFIERS = ("_fc",)
LAYOUTS = [Layout("efficientnet_lite_pytorch", "_blocks.0._depthwise_conv.weight", read_network)]
