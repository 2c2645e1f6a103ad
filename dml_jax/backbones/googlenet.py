"""Going deeper with convolutions (Szegedy et al., CVPR 2015), with batch norm, as in torchvision.

Its weights require two deviations from the paper: the "5x5" branch is a 3x3 convolution, and images
normalised with ImageNet's mean and standard deviation are mapped to [-1, 1] (`transform_input`).
The feature map is the output of block 5b: 1024 channels at 1/32 of the image's resolution. The
auxiliary classifiers are omitted.

5,599,904 parameters without the classifier. Convolutions start as N(0, 0.01^2), not truncated.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones.batch_norm import ConvolutionalConfig, batch_norm
from dml_jax.backbones.contract import Backbone, Pixels
from dml_jax.backbones.functional import as_backbone
from dml_jax.backbones.layers import Conv, MaxPool, compute_dtype, normal_init, relu, require_size
from dml_jax.backbones.weights.convert import Layout, Network, dotted
from dml_jax.config.fields import section


@section
class Config(ConvolutionalConfig):
    """Options of GoogLeNet with batch norm.

    Attributes:
      transform_input: Maps images to [-1, 1] again, as when the published weights were trained;
        some papers omit it.
    """

    name: str = "googlenet"
    transform_input: bool = True


CHANNELS = 1024
SMALLEST = 15  # side in pixels; a smaller image has no pixel left after the third pooling

# Per block: channels of 1x1; 3x3 reduce, 3x3; "5x5" reduce, "5x5"; pool projection.
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


class ConvBnRelu(nn.Module):
    """Convolution without bias, batch norm with epsilon 1e-3 and ReLU."""

    config: Config
    channels: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, ceil(H/stride), ceil(W/stride), channels]."""
        dtype = compute_dtype(self.config.dtype)
        padding, init = self.size // 2, normal_init(0.01)
        conv = partial(Conv, kernel_init=init, dtype=dtype, name="conv")
        convolution = conv(self.channels, self.size, self.stride, padding)
        return relu(batch_norm(self.config, "bn", epsilon=1e-3)(x, train, convolution))


class Block(nn.Module):
    """Concatenates four branches: 1x1; 3x3; "5x5"; pooling and projection."""

    config: Config
    key: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, C] -> float [B, H, W, C']."""
        one, reduce3, three, reduce5, five, projection = BLOCKS[self.key]

        def unit(y: jax.Array, channels: int, size: int, name: str) -> jax.Array:
            return ConvBnRelu(self.config, channels, size, name=name)(y, train)

        branches = [
            unit(x, one, 1, "branch1"),
            unit(unit(x, reduce3, 1, "branch2_0"), three, 3, "branch2_1"),
            unit(unit(x, reduce5, 1, "branch3_0"), five, 3, "branch3_1"),
        ]
        pooled = MaxPool(3, 1, padding=1, ceil=True, name="branch4_0")(x)
        return jnp.concatenate([*branches, unit(pooled, projection, 1, "branch4_1")], axis=-1)


class GoogLeNet(nn.Module):
    """The network without global pooling and classifiers."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, H, W, 3] -> float [B, h, w, 1024]."""
        config = self.config
        fits = min(x.shape[1:3]) >= SMALLEST
        require_size(fits, x, f"too small for GoogLeNet; use at least {SMALLEST}x{SMALLEST}")
        if config.transform_input:
            # Maps (v - mean) / std with ImageNet's constants to (v - 0.5) / 0.5.
            imagenet = Pixels()
            scale = jnp.array([std / 0.5 for std in imagenet.std], x.dtype)
            shift = jnp.array([(mean - 0.5) / 0.5 for mean in imagenet.mean], x.dtype)
            x = x * scale[None, None, None, :] + shift[None, None, None, :]
        x = ConvBnRelu(config, 64, 7, 2, name="conv1")(x, train)
        x = MaxPool(3, 2, ceil=True, name="maxpool1")(x)
        x = ConvBnRelu(config, 64, 1, name="conv2")(x, train)
        x = ConvBnRelu(config, 192, 3, name="conv3")(x, train)
        x = MaxPool(3, 2, ceil=True, name="maxpool2")(x)
        block = nn.remat(Block, static_argnums=(2,)) if config.remat else Block
        for key in BLOCKS:
            if key == "4a":
                x = MaxPool(3, 2, ceil=True, name="maxpool3")(x)
            if key == "5a":
                x = MaxPool(2, 2, ceil=True, name="maxpool4")(x)
            x = block(config, key, name=f"inception{key}")(x, train)
        return x


def build(config: Config) -> Backbone:
    """GoogLeNet as a backbone."""
    return as_backbone(GoogLeNet(config), CHANNELS, config)


def torch_module(modules: tuple[str, ...]) -> str:
    """The name of a module in torchvision."""
    return dotted(".".join(modules))


PUBLISHED = {"googlenet": Config()}
CLASSIFIERS = ("fc",)
NETWORK = Network(Config(), interpolation="bilinear")
LAYOUTS = [Layout("torchvision", "inception3a.branch1.conv.weight", lambda _: NETWORK)]
