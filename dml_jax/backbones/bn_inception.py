"""Batch normalization: accelerating deep network training (Ioffe & Szegedy, ICML 2015).

The Inception network of the paper's appendix with its ImageNet weights from Caffe (Cadene's
collection), which most of the metric learning literature uses. Every convolution has a bias and is
followed by batch norm and ReLU. The features are the output of block 5b: 1024 channels at 1/32.

10,270,240 parameters without the classifier. Convolutions start as N(0, 2 / fan in).
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones import layers
from dml_jax.backbones.batch_norm import ConvolutionalConfig, batch_norm
from dml_jax.backbones.contract import CAFFE, Backbone, Pixels
from dml_jax.backbones.functional import as_backbone
from dml_jax.backbones.layers import Conv, MaxPool, compute_dtype, he_fan_in, relu, require_size
from dml_jax.backbones.weights.convert import Layout, Network
from dml_jax.config.fields import section


@section
class Config(ConvolutionalConfig):
    """Options of BN-Inception."""

    name: str = "bn_inception"
    pixels: Pixels = CAFFE


CHANNELS = 1024

# Per block: channels of 1x1 (0: none), 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, pool
# projection (0: none); and the kind of pooling. Blocks without projection downsample by 2.
BLOCKS: dict[str, tuple[int, int, int, int, int, int, Literal["average", "max"]]] = {
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


def _conv_bn_relu(
    config: Config, x: jax.Array, train: bool, channels: int, size: int, stride: int, name: str
) -> jax.Array:
    """Convolution with bias, batch norm and ReLU, as submodules of the calling module."""
    padding, dtype = size // 2, compute_dtype(config.dtype)
    conv = partial(Conv, use_bias=True, kernel_init=he_fan_in, dtype=dtype, name=name)
    convolution = conv(channels, size, stride, padding)
    return relu(batch_norm(config, f"{name}_bn")(x, train, convolution))


class Block(nn.Module):
    """Concatenates four branches: 1x1; 3x3; double 3x3; pooling and projection."""

    config: Config
    key: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, H', W', C'], with H' = H or, downsampled, H / 2."""
        one, reduce3, three, reduce_double, double, projection, pool = BLOCKS[self.key]
        stride = 1 if projection else 2

        def unit(y: jax.Array, channels: int, size: int, name: str, stride: int = 1) -> jax.Array:
            return _conv_bn_relu(self.config, y, train, channels, size, stride, name)

        branches = [unit(x, one, 1, "1x1")] if one else []
        branches.append(unit(unit(x, reduce3, 1, "3x3_reduce"), three, 3, "3x3", stride))
        y = unit(unit(x, reduce_double, 1, "double_3x3_reduce"), double, 3, "double_3x3_1")
        branches.append(unit(y, double, 3, "double_3x3_2", stride))
        if pool == "max":
            pooled = MaxPool(3, stride, padding=1 if stride == 1 else 0, ceil=True, name="pool")(x)
        else:
            pooled = layers.AveragePool(name="pool")(x)
        branches.append(unit(pooled, projection, 1, "pool_proj") if projection else pooled)
        return jnp.concatenate(branches, axis=-1)


class BNInception(nn.Module):
    """The network without global pooling and classifier."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, H / 32, W / 32, 1024]."""
        # With other sides, only the pooling branches of 3c and 4e would drop a row.
        fits = all(side >= 32 and (side + 1) // 2 // 4 % 4 == 0 for side in x.shape[1:3])
        problem = "BN-Inception's branches would differ in size; use a multiple of 32, or 227"
        require_size(fits, x, problem)
        x = _conv_bn_relu(self.config, x, train, 64, 7, 2, "conv1_7x7_s2")
        x = MaxPool(3, 2, ceil=True, name="pool1_3x3_s2")(x)
        x = _conv_bn_relu(self.config, x, train, 64, 1, 1, "conv2_3x3_reduce")
        x = _conv_bn_relu(self.config, x, train, 192, 3, 1, "conv2_3x3")
        x = MaxPool(3, 2, ceil=True, name="pool2_3x3_s2")(x)
        block = nn.remat(Block, static_argnums=(2,)) if self.config.remat else Block
        for key in BLOCKS:
            x = block(self.config, key, name=f"inception_{key}")(x, train)
        return x


def build(config: Config) -> Backbone:
    """BN-Inception as a backbone."""
    return as_backbone(BNInception(config), CHANNELS, config)


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in Cadene's pretrained-models.pytorch."""
    return "_".join(modules)


PUBLISHED = {"bn_inception": Config()}
CLASSIFIERS = ("last_linear",)
NETWORK = Network(Config(), interpolation="bilinear")
LAYOUTS = [Layout("Cadene", "conv1_7x7_s2.weight", lambda _: NETWORK)]
