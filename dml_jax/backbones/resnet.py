"""Deep residual learning for image recognition (He et al., CVPR 2016).

The form whose weights torchvision publishes ("v1.5"): in a bottleneck that halves the map, the stride sits on the 3x3
convolution. Feature map: after the last stage and its ReLU, 32 times smaller than the image, rounded up.

ResNet-50: 23,508,032 parameters without the classifier.
"""

from dataclasses import dataclass, field
from typing import Literal

import flax.linen as nn
import jax

from dml_jax.backbones.as_backbone import assemble, fan_out
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import BatchNorm, MaxPool, batch_norm, compute_dtype, conv
from dml_jax.backbones.pixels import Pixels
from dml_jax.config_schema import require

# Block and depths: where torchvision's first ImageNet weights ("V1"), which the papers started from, are published.
SOURCES: dict[tuple[str, tuple[int, ...]], str] = {
    ("basic", (2, 2, 2, 2)): "hf://timm/resnet18.tv_in1k",
    ("basic", (3, 4, 6, 3)): "hf://timm/resnet34.tv_in1k",
    ("bottleneck", (3, 4, 6, 3)): "hf://timm/resnet50.tv_in1k",
    ("bottleneck", (3, 4, 23, 3)): "hf://timm/resnet101.tv_in1k",
}


@dataclass(frozen=True)
class Config:
    """A residual network; the defaults are ResNet-50."""

    name: str = "resnet"
    block: Literal["basic", "bottleneck"] = "bottleneck"
    depths: tuple[int, ...] = (3, 4, 6, 3)  # blocks of each stage
    widths: tuple[int, ...] = (
        64,
        128,
        256,
        512,
    )  # channels of each stage; a bottleneck gives four times as many
    stem: Literal["imagenet", "small"] = "imagenet"  # small: 3x3 at stride 1 and no max pool, for tiny images
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    freeze_bn: bool = False  # running statistics are used and never updated, in training too
    freeze_bn_affine: bool = False  # scales and biases of batch norms are neither trained nor decayed
    bn_momentum: float = 0.1  # weight of the new batch in the running statistics (torch's sense)
    stage_bn_updates: int = 1  # times a step moves the stages' running statistics; 2 in MPN's authors' code
    pixels: Pixels = field(default_factory=Pixels)
    remat: bool = False  # recompute every block's insides in the backward pass: less memory, more time
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters stay float32

    def __post_init__(self) -> None:
        require(len(self.depths) > 0, "backbone.depths", self.depths, "must name at least one stage")
        require(min(self.depths, default=0) > 0, "backbone.depths", self.depths, "must be positive")
        require(
            len(self.widths) == len(self.depths),
            "backbone.widths",
            self.widths,
            f"must have as many entries as backbone.depths={self.depths}",
        )
        require(min(self.widths, default=0) > 0, "backbone.widths", self.widths, "must be positive")
        require(0 <= self.bn_momentum <= 1, "backbone.bn_momentum", self.bn_momentum, "must be in [0, 1]")
        require(self.stage_bn_updates > 0, "backbone.stage_bn_updates", self.stage_bn_updates, "must be positive")


def resnet18() -> Config:
    """11,176,512 parameters, 512 channels."""
    return Config(block="basic", depths=(2, 2, 2, 2))


def resnet34() -> Config:
    """21,284,672 parameters, 512 channels."""
    return Config(block="basic", depths=(3, 4, 6, 3))


def resnet50() -> Config:
    """23,508,032 parameters, 2048 channels."""
    return Config()


def resnet101() -> Config:
    """42,500,160 parameters, 2048 channels."""
    return Config(depths=(3, 4, 23, 3))


class Block(nn.Module):
    """relu(x + f(x)), with f two 3x3 convolutions, or 1x1, 3x3, 1x1 in a bottleneck; batch norm after each."""

    config: Config
    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, ceil(H/stride), ceil(W/stride), C']."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        bottleneck = config.block == "bottleneck"
        channels = 4 * self.width if bottleneck else self.width

        def norm(name: str) -> BatchNorm:
            return batch_norm(config, name, updates=config.stage_bn_updates)

        shortcut = x
        if x.shape[-1] != channels or self.stride != 1:
            shortcut = conv(channels, 1, self.stride, dtype=dtype, name="downsample_conv")(x)
            shortcut = norm("downsample_bn")(shortcut, train)
        if bottleneck:
            y = nn.relu(norm("bn1")(conv(self.width, 1, dtype=dtype, name="conv1")(x), train))
            y = conv(self.width, 3, self.stride, padding=1, dtype=dtype, name="conv2")(y)
            y = nn.relu(norm("bn2")(y, train))
            y = norm("bn3")(conv(channels, 1, dtype=dtype, name="conv3")(y), train)
        else:
            y = conv(self.width, 3, self.stride, padding=1, dtype=dtype, name="conv1")(x)
            y = nn.relu(norm("bn1")(y, train))
            y = norm("bn2")(conv(channels, 3, padding=1, dtype=dtype, name="conv2")(y), train)
        return nn.relu(y + shortcut)


class ResNet(nn.Module):
    """The network without pooling and classifier."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, h, w, channels]."""
        config, dtype = self.config, compute_dtype(self.config.dtype)
        small = config.stem == "small"
        size, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        x = conv(config.widths[0], size, stride, padding=padding, dtype=dtype, name="conv1")(x)
        x = nn.relu(batch_norm(config, "bn1")(x, train))
        if not small:
            x = MaxPool(3, 2, padding=1, name="maxpool")(x)
        block = nn.remat(Block, static_argnums=(2,)) if config.remat else Block
        for stage, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                x = block(config, width, stride, name=f"layer{stage + 1}_{index}")(x, train)
        return x


def build(config: Config) -> Backbone:
    """The backbone of a configuration.

    Raises:
      WeightsError: by `init`, where `config.pretrained` does not hold this network's weights.
    """
    channels = config.widths[-1] * (4 if config.block == "bottleneck" else 1)
    source = SOURCES.get((config.block, config.depths), "FILE")
    return assemble(ResNet(config), channels, config, spread=fan_out, source=source)
