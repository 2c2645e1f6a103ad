"""A network: two convolutions."""

import flax.linen as nn
import jax

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Pixels
from dml_jax.config.fields import PositiveInt, section


@section
class Config:
    """Options of the network."""

    name: str = "tests.plugins.network"
    pretrained: str = "none"
    pixels: Pixels = Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    width: PositiveInt = 16  # channels


class Network(nn.Module):
    width: int

    @nn.compact
    def __call__(self, images, train):
        x = jax.nn.relu(nn.Conv(self.width, (3, 3), strides=2)(images))
        return jax.nn.relu(nn.Conv(self.width, (3, 3), strides=2)(x))


def build(config):
    return functional.as_backbone(Network(config.width), config.width, config)
