"""Batch normalization: accelerating deep network training (Ioffe & Szegedy, ICML 2015).

The Inception network of that paper's appendix, in the form whose ImageNet weights were converted from Caffe (Cadene's
collection) and which most of the metric learning literature reports: every convolution has a bias and is followed by
batch norm and ReLU. Feature map: block 5b, 1024 channels, 32 times smaller than the image.

10,270,240 parameters without the classifier.
"""

from dataclasses import dataclass, field
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones.as_backbone import assemble, fan_in
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import AveragePool, MaxPool, batch_norm, compute_dtype, conv
from dml_jax.backbones.pixels import CAFFE, Pixels
from dml_jax.config_schema import require
from dml_jax.errors import ConfigError

CHANNELS = 1024
SOURCE = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"

# Name: channels of 1x1 (0: none), 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, pool projection (0: none), and the
# pool. Blocks without projection halve the map.
BLOCKS: dict[str, tuple[int, int, int, int, int, int, str]] = {
    "3a": (64, 64, 64, 64, 96, 32, "average"),
    "3b": (64, 64, 96, 64, 96, 64, "average"),
    "3c": (0, 128, 160, 64, 96, 0, "max"),
    "4a": (224, 64, 96, 96, 128, 128, "average"),
    "4b": (192, 96, 128, 96, 128, 128, "average"),
    "4c": (160, 128, 160, 128, 160, 128, "average"),
    "4d": (96, 128, 192, 160, 192, 128, "average"),
    "4e": (0, 128, 192, 192, 256, 0, "max"),
    "5a": (352, 192, 320, 160, 224, 128, "average"),
    "5b": (352, 192, 320, 192, 224, 128, "max"),
}


@dataclass(frozen=True)
class Config:
    """BN-Inception."""

    name: str = "bn_inception"
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    freeze_bn: bool = False  # running statistics are used and never updated, in training too
    freeze_bn_affine: bool = False  # scales and biases of batch norms are neither trained nor decayed
    bn_momentum: float = 0.1  # weight of the new batch in the running statistics; 0.9 in Proxy-Anchor's, HIST's code
    pixels: Pixels = field(default_factory=lambda: CAFFE)
    remat: bool = False  # recompute every block's insides in the backward pass: less memory, more time
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters stay float32

    def __post_init__(self) -> None:
        require(0 <= self.bn_momentum <= 1, "backbone.bn_momentum", self.bn_momentum, "must be in [0, 1]")


def _unit(config: Config, x: jax.Array, train: bool, channels: int, size: int, stride: int, name: str) -> jax.Array:
    """Convolution with bias, batch norm, ReLU; called inside a compact module, which gets the parameters."""
    padding = size // 2
    y = conv(channels, size, stride, padding=padding, bias=True, dtype=compute_dtype(config.dtype), name=name)(x)
    return nn.relu(batch_norm(config, f"{name}_bn")(y, train))


class Block(nn.Module):
    """Branches 1x1; 3x3; two 3x3; pool and projection, side by side in this order."""

    config: Config
    key: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, H', W', C']; H' = H, or H / 2 where the block halves."""
        one, reduce3, three, reduce_double, double, projection, pool = BLOCKS[self.key]
        stride = 1 if projection else 2

        def unit(y: jax.Array, channels: int, size: int, name: str, stride: int = 1) -> jax.Array:
            return _unit(self.config, y, train, channels, size, stride, name)

        branches = [unit(x, one, 1, "1x1")] if one else []
        branches.append(unit(unit(x, reduce3, 1, "3x3_reduce"), three, 3, "3x3", stride))
        y = unit(unit(x, reduce_double, 1, "double_3x3_reduce"), double, 3, "double_3x3_1")
        branches.append(unit(y, double, 3, "double_3x3_2", stride))
        if pool == "average":
            pooled = AveragePool(name="pool")(x)
        else:
            pooled = MaxPool(3, stride, padding=1 if stride == 1 else 0, ceil=True, name="pool")(x)
        branches.append(unit(pooled, projection, 1, "pool_proj") if projection else pooled)
        return jnp.concatenate(branches, axis=-1)


class BNInception(nn.Module):
    """The network without pooling and classifier."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, H / 32, W / 32, 1024]."""
        _check_size(x.shape[1], x.shape[2])
        x = _unit(self.config, x, train, 64, 7, 2, "conv1_7x7_s2")
        x = MaxPool(3, 2, ceil=True, name="pool1_3x3_s2")(x)
        x = _unit(self.config, x, train, 64, 1, 1, "conv2_3x3_reduce")
        x = _unit(self.config, x, train, 192, 3, 1, "conv2_3x3")
        x = MaxPool(3, 2, ceil=True, name="pool2_3x3_s2")(x)
        block = nn.remat(Block, static_argnums=(2,)) if self.config.remat else Block
        for key in BLOCKS:
            x = block(self.config, key, name=f"inception_{key}")(x, train)
        return x


def _check_size(height: int, width: int) -> None:
    """Where 3c and 4e meet a map with an odd side, their pool drops a row that their convolutions keep."""
    for side in (height, width):
        if side < 32 or ((side + 1) // 2 // 4) % 4 != 0:
            raise ConfigError(
                f"images of {height}x{width} pixels: BN-Inception's branches would differ in size; "
                "use a multiple of 32, or 227"
            )


def build(config: Config) -> Backbone:
    """The backbone of a configuration.

    Raises:
      ConfigError: by `init` and `apply`, for an image size the network cannot take.
      WeightsError: by `init`, where `config.pretrained` does not hold this network's weights.
    """
    return assemble(BNInception(config), CHANNELS, config, spread=fan_in, source=SOURCE)
