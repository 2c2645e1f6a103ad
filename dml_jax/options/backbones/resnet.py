"""Options of residual networks."""

from typing import Annotated, Literal

from dml_jax.options.backbones import Dtype, FreezeBatchNorm, Pixels
from dml_jax.options.fields import NonEmpty, PositiveInt, Probability, require, section


@section
class Config:
    """Options of a residual network; the defaults are ResNet-50."""

    name: str = "resnet"
    block: Literal["basic", "bottleneck"] = "bottleneck"  # basic: two 3x3 convolutions; bottleneck: 1x1, 3x3, 1x1
    depths: Annotated[tuple[PositiveInt, ...], NonEmpty] = (3, 4, 6, 3)  # blocks of each stage
    widths: tuple[PositiveInt, ...] = (64, 128, 256, 512)  # of each stage; bottlenecks output 4 times as many channels
    stem: Literal["imagenet", "small"] = "imagenet"  # small: 3x3, stride 1, no max pooling, for tiny images
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    freeze_bn: FreezeBatchNorm = False  # use the running statistics in training, too, and never update them
    freeze_bn_affine: bool = False  # do not train or decay the scales and biases of batch norms
    bn_momentum: Probability = 0.1  # weight of the new batch in the running statistics (PyTorch's convention)
    stage_bn_updates: PositiveInt = 1  # updates of the stages' running statistics per step; 2 in MPN's code
    pixels: Pixels = Pixels()
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well

    def __post_init__(self) -> None:
        rule = f"must have as many entries as depths={self.depths}"
        require(len(self.widths) == len(self.depths), "widths", self.widths, rule)


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
