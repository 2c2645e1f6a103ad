"""Going deeper with convolutions (Szegedy et al., CVPR 2015), with batch norm, as torchvision publishes it.

Two things its weights depend on: the branch called 5x5 is a 3x3 convolution, and images normalised with ImageNet's mean
and deviation are mapped to [-1, 1] (`transform_input`). Feature map: block 5b, 1024 channels, 32 times smaller than the
image. The auxiliary classifiers are left out.

5,599,904 parameters without the classifier.
"""

from dataclasses import dataclass, field
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones.as_backbone import Path, Shape, assemble
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import MaxPool, batch_norm, compute_dtype, conv
from dml_jax.backbones.pixels import Pixels
from dml_jax.config_schema import require

CHANNELS = 1024
SOURCE = "https://download.pytorch.org/models/googlenet-1378be20.pth"

# Name: channels of 1x1; 3x3 reduce, 3x3; "5x5" reduce, "5x5"; pool projection.
BLOCKS: dict[str, tuple[int, int, int, int, int, int]] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


@dataclass(frozen=True)
class Config:
    """GoogLeNet with batch norm."""

    name: str = "googlenet"
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    transform_input: bool = True  # as the published weights were trained; HIST's authors leave it out
    freeze_bn: bool = False  # running statistics are used and never updated, in training too
    freeze_bn_affine: bool = False  # scales and biases of batch norms are neither trained nor decayed
    bn_momentum: float = 0.1  # weight of the new batch in the running statistics (torch's sense)
    pixels: Pixels = field(default_factory=Pixels)
    remat: bool = False  # recompute every block's insides in the backward pass: less memory, more time
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters stay float32

    def __post_init__(self) -> None:
        require(0 <= self.bn_momentum <= 1, "backbone.bn_momentum", self.bn_momentum, "must be in [0, 1]")


class Unit(nn.Module):
    """Convolution without bias, batch norm with epsilon 1e-3, ReLU."""

    config: Config
    channels: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, ceil(H/stride), ceil(W/stride), channels]."""
        dtype = compute_dtype(self.config.dtype)
        x = conv(self.channels, self.size, self.stride, padding=self.size // 2, dtype=dtype, name="conv")(x)
        return nn.relu(batch_norm(self.config, "bn", epsilon=1e-3)(x, train))


class Block(nn.Module):
    """Branches 1x1; 3x3; "5x5"; pool and projection, side by side in this order."""

    config: Config
    key: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, H, W, C']."""
        one, reduce3, three, reduce5, five, projection = BLOCKS[self.key]

        def unit(y: jax.Array, channels: int, size: int, name: str) -> jax.Array:
            return Unit(self.config, channels, size, name=name)(y, train)

        return jnp.concatenate(
            [
                unit(x, one, 1, "branch1"),
                unit(unit(x, reduce3, 1, "branch2_0"), three, 3, "branch2_1"),
                unit(unit(x, reduce5, 1, "branch3_0"), five, 3, "branch3_1"),
                unit(MaxPool(3, 1, padding=1, ceil=True, name="branch4_0")(x), projection, 1, "branch4_1"),
            ],
            axis=-1,
        )


class GoogLeNet(nn.Module):
    """The network without pooling and classifiers."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, h, w, 1024]."""
        config = self.config
        if config.transform_input:
            # From (v - mean) / std, ImageNet's constants, to (v - 0.5) / 0.5.
            scale = jnp.array([0.229 / 0.5, 0.224 / 0.5, 0.225 / 0.5], x.dtype)
            shift = jnp.array([(0.485 - 0.5) / 0.5, (0.456 - 0.5) / 0.5, (0.406 - 0.5) / 0.5], x.dtype)
            x = x * scale[None, None, None, :] + shift[None, None, None, :]
        x = Unit(config, 64, 7, 2, name="conv1")(x, train)
        x = MaxPool(3, 2, ceil=True, name="maxpool1")(x)
        x = Unit(config, 64, 1, name="conv2")(x, train)
        x = Unit(config, 192, 3, name="conv3")(x, train)
        x = MaxPool(3, 2, ceil=True, name="maxpool2")(x)
        block = nn.remat(Block, static_argnums=(2,)) if config.remat else Block
        for key in BLOCKS:
            if key == "4a":
                x = MaxPool(3, 2, ceil=True, name="maxpool3")(x)
            if key == "5a":
                x = MaxPool(2, 2, ceil=True, name="maxpool4")(x)
            x = block(config, key, name=f"inception{key}")(x, train)
        return x


def _spread(path: Path, shape: Shape) -> float:
    """torchvision's initialisation."""
    return 0.01


def build(config: Config) -> Backbone:
    """The backbone of a configuration.

    Raises:
      WeightsError: by `init`, where `config.pretrained` does not hold this network's weights.
    """
    return assemble(GoogLeNet(config), CHANNELS, config, spread=_spread, source=SOURCE)
