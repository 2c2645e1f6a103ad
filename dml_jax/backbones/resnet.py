"""Deep residual learning for image recognition (He et al., CVPR 2016).

The variant of torchvision ("v1.5"): bottlenecks downsample in the 3x3 convolution. The feature map
is the output of the last stage, after its ReLU, at 1/32 of the resolution (rounded up).

Without the classifier, ResNet-18, 34, 50 and 101 have 11,176,512, 21,284,672, 23,508,032 and
42,500,160 parameters. Convolutions start as N(0, 2 / fan out) (He et al., ICCV 2015).
"""

from functools import partial
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax

from dml_jax.backbones.batch_norm import ConvolutionalConfig, batch_norm
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.functional import as_backbone
from dml_jax.backbones.layers import Conv, MaxPool, compute_dtype, relu
from dml_jax.backbones.weights.convert import Layout, Network, count, dotted, length
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.config.fields import Mark, NonEmpty, PositiveInt, Rules, require, section


@section
class Config(ConvolutionalConfig):
    """Options of a residual network; the defaults are ResNet-50.

    Attributes:
      block: Kind of the blocks: "basic" has two 3x3 convolutions; "bottleneck" has 1x1, 3x3 and
        1x1.
      depths: Number of blocks of each stage.
      widths: Channels of each stage; bottlenecks output 4 times as many.
      stem: First layers: "imagenet", or "small" (3x3, stride 1, no max pooling) for tiny images.
      stage_bn_updates: Updates of the stages' running statistics per step; 2 reproduces PyTorch
        with checkpointing.
    """

    name: str = "resnet"
    block: Literal["basic", "bottleneck"] = "bottleneck"
    depths: Annotated[tuple[PositiveInt, ...], NonEmpty] = (3, 4, 6, 3)
    widths: tuple[PositiveInt, ...] = (64, 128, 256, 512)
    stem: Literal["imagenet", "small"] = "imagenet"
    stage_bn_updates: Annotated[PositiveInt, Mark.TRAINING] = 1

    def __post_init__(self) -> None:
        rule = f"must have as many entries as depths={self.depths}"
        require(len(self.widths) == len(self.depths), "widths", self.widths, rule)

    def inert(self, config: Any) -> Rules:
        """When options have an effect; see `config.fields.inert`."""
        return tuple((*rule, "stage_bn_updates") for rule in super().inert(config))


PUBLISHED = {
    "resnet18": Config(block="basic", depths=(2, 2, 2, 2)),
    "resnet34": Config(block="basic"),
    "resnet50": Config(),
    "resnet101": Config(depths=(3, 4, 23, 3)),
}
CLASSIFIERS = ("fc",)
EXPANSION = {"basic": 1, "bottleneck": 4}  # channels of a block's output, divided by its width


class Block(nn.Module):
    """relu(x + f(x)); f is two 3x3 convolutions, or a bottleneck 1x1, 3x3, 1x1, with batch norm."""

    config: Config
    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, ceil(H/stride), ceil(W/stride), C']."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        channels = EXPANSION[config.block] * self.width
        norm = partial(batch_norm, config, updates=config.stage_bn_updates)
        shortcut = x
        if x.shape[-1] != channels or self.stride != 1:
            conv = Conv(channels, 1, self.stride, dtype=dtype, name="downsample_conv")
            shortcut = norm("downsample_bn")(x, train, conv)
        if config.block == "bottleneck":
            conv = Conv(self.width, 1, dtype=dtype, name="conv1")
            y = relu(norm("bn1")(x, train, conv))
            conv = Conv(self.width, 3, self.stride, padding=1, dtype=dtype, name="conv2")
            y = relu(norm("bn2")(y, train, conv))
            y = norm("bn3")(y, train, Conv(channels, 1, dtype=dtype, name="conv3"))
        else:
            conv = Conv(self.width, 3, self.stride, padding=1, dtype=dtype, name="conv1")
            y = relu(norm("bn1")(x, train, conv))
            y = norm("bn2")(y, train, Conv(channels, 3, padding=1, dtype=dtype, name="conv2"))
        return relu(y + shortcut)


class ResNet(nn.Module):
    """The network without global pooling and classifier."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, h, w, channels]."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        size, stride = (7, 2) if config.stem == "imagenet" else (3, 1)
        conv = Conv(config.widths[0], size, stride, padding=size // 2, dtype=dtype, name="conv1")
        x = relu(batch_norm(config, "bn1")(x, train, conv))
        if config.stem == "imagenet":
            x = MaxPool(3, 2, padding=1, name="maxpool")(x)
        block = nn.remat(Block, static_argnums=(2,)) if config.remat else Block
        for stage, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                x = block(config, width, stride, name=f"layer{stage + 1}_{index}")(x, train)
        return x


def build(config: Config) -> Backbone:
    """A ResNet as a backbone."""
    channels = EXPANSION[config.block] * config.widths[-1]
    return as_backbone(ResNet(config), channels, config)


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in torchvision."""
    joined = ".".join(modules).replace("downsample_conv", "downsample.0")
    return dotted(joined.replace("downsample_bn", "downsample.1"))


def read_network(tensors: StateDict) -> Network:
    """The residual network with these tensors, in torchvision's names."""
    stages = range(1, 1 + count(tensors, lambda s: f"layer{s + 1}.0.conv1.weight"))
    stem = tensors["conv1.weight"].shape[-1:] if "conv1.weight" in tensors else ()
    config = Config(
        block="bottleneck" if "layer1.0.conv3.weight" in tensors else "basic",
        depths=tuple(count(tensors, lambda b, s=s: f"layer{s}.{b}.conv1.weight") for s in stages),  # type: ignore[misc]
        widths=tuple(length(tensors, f"layer{s}.0.bn1.weight") for s in stages),
        stem="small" if stem == (3,) else "imagenet",
    )
    return Network(config, interpolation="bilinear")


LAYOUTS = [Layout("torchvision", "layer1.0.conv1.weight", read_network)]
