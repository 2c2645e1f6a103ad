"""A text encoder: embeddings of words, two convolutions; the method pools and projects."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone
from dml_jax.config.fields import PositiveInt, section


@section
class Config:
    """Options of the encoder."""

    name: str = "tests.plugins.text_encoder"
    pretrained: str = "none"
    words: PositiveInt = 64  # size of the vocabulary
    width: PositiveInt = 64  # channels


class Encoder(nn.Module):
    words: int
    width: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.words, self.width)(tokens)
        for _ in range(2):
            x = x + nn.Conv(self.width, (5,))(jax.nn.relu(x))
        return x * (tokens > 0)[..., None]


def build(config):
    network = Encoder(config.words, config.width)

    def init(key, shape):
        return network.init(key, jnp.zeros((1, *shape), jnp.int32))["params"], {}

    def apply(params, stats, tokens, *, train, key=None):
        return network.apply({"params": params}, tokens)[:, None], stats  # [B, 1, T, width]

    return Backbone(init, apply, config.width, preprocess=lambda tokens: tokens)
