"""A method with two towers: images and one caption per training image share an embedding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import losses
from dml_jax.backbones import functional
from dml_jax.config.fields import PositiveInt, section
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Method

GROUPS = ("backbone", "embedding", "text")
WORDS = 12


def captions(data):
    """Tokens int [N, 4] of each training image: two words of its class, two at random. Read yours from a file here."""
    random = np.random.default_rng(0).integers(2, WORDS, (data.images, 4))
    random[:, 0], random[:, 1] = data.labels % WORDS, (3 * data.labels + 1) % WORDS
    return random


class TextTower(nn.Module):
    dim: int

    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(self.dim)(nn.Embed(WORDS, 16)(tokens).mean(axis=1))


@section
class Config:
    """Options of the method."""

    name: str = "tests.plugins.two_towers"
    embedding_dim: PositiveInt = 16  # of both towers


def build(config, backbone, data):
    embedding, tower = heads.Embedding(config.embedding_dim, "avg"), TextTower(config.embedding_dim)
    encode = heads.encoder(backbone, embedding)
    tokens = None if data.labels is None else jnp.asarray(captions(data))

    def init(key, batch):
        keys = jax.random.split(key, 3)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        params["text"], _ = functional.init(tower, keys[2], jax.ShapeDtypeStruct((1, 4), jnp.int32))
        return params, model_state

    def loss(params, model_state, encoded, batch, step, key):
        text, _ = functional.apply(tower, params["text"], {}, tokens[batch.index])
        own = jnp.eye(len(encoded), dtype=bool)  # a caption belongs to its image alone

        def matched(a, b):
            return losses.nt_xent(a, candidates=b, positive=own, negative=~own)

        return (matched(encoded, text) + matched(text, encoded)) / 2, Aux(model_state, {})

    return Method(init, encode, loss, heads.unit_embed(encode), GROUPS, group=lambda path: path[0])


def embed_text(config, params, tokens):
    """Captions int [N, 4] -> [N, D], for `evaluation.retrieval(text, labels, gallery=images, …)`."""
    return functional.apply(TextTower(config.embedding_dim), params["text"], {}, tokens)[0]
