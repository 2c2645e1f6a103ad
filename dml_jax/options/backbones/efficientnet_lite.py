"""Options of EfficientNet-Lite."""

from typing import Annotated

from annotated_types import Len

from dml_jax.options.backbones import Dtype, Pixels
from dml_jax.options.fields import PositiveInt, Probability, section

GOOGLE = Pixels(mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0), top=255.0)


@section
class Config:
    """Options of an EfficientNet-Lite; the defaults are Lite0."""

    name: str = "efficientnet_lite"
    depths: Annotated[tuple[PositiveInt, ...], Len(7, 7)] = (1, 2, 2, 3, 3, 4, 1)  # blocks of each stage
    widths: Annotated[tuple[PositiveInt, ...], Len(7, 7)] = (16, 24, 40, 80, 112, 192, 320)  # channels of each stage
    stem: PositiveInt = 32  # channels of the first convolution
    channels: PositiveInt = 1280  # channels of the last convolution, and of the feature map
    pretrained: str = "none"  # "lite0" for the installed package, a directory of converted weights, or "none"
    freeze_bn: bool = False  # use the running statistics in training, too, and never update them
    freeze_bn_affine: bool = False  # do not train or decay the scales and biases of batch norms
    bn_momentum: Probability = 0.01  # weight of the new batch in the running statistics (PyTorch's convention)
    pixels: Pixels = GOOGLE
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well


def lite0() -> Config:
    """3,371,008 parameters, 1280 channels; images of 224 pixels."""
    return Config()


def lite1() -> Config:
    """4,135,680 parameters, 1280 channels; images of 240 pixels."""
    return Config(depths=(1, 3, 3, 4, 4, 5, 1))


def lite2() -> Config:
    """4,811,072 parameters, 1280 channels; images of 260 pixels."""
    return Config(depths=(1, 3, 3, 4, 4, 5, 1), widths=(16, 24, 48, 88, 120, 208, 352))
