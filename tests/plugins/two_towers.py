"""A method with two towers: images and one caption per training image share an embedding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import losses
from dml_jax.config.fields import section
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Method

GROUPS = ("backbone", "embedding", "text")
TOWER = nn.Sequential([nn.Embed(12, 16), lambda words: words.mean(axis=1), nn.Dense(16)])


def captions(data):
    """Tokens int [N, 4] of each training image: two words of its class, two at random. Read yours
    from a file here."""
    random = np.random.default_rng(0).integers(2, 12, (data.images, 2))
    return np.column_stack([data.labels % 12, (3 * data.labels + 1) % 12, random])


@section
class Config:
    """Options of the method."""

    name: str = "tests.plugins.two_towers"


def build(config, backbone, data):
    embedding = heads.Embedding(16, "avg")
    encode = heads.encoder(backbone, embedding)
    tokens = None if data.labels is None else jnp.asarray(captions(data))

    def init(key, batch):
        keys = jax.random.split(key, 3)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        return params | {"text": TOWER.init(keys[2], jnp.zeros((1, 4), int))["params"]}, model_state

    def loss(params, model_state, encoded, batch, step, key):
        pair = [encoded, embed_text(params, tokens[batch.index])]
        own = jnp.eye(len(encoded), dtype=bool)  # a caption belongs to its image alone
        terms = [
            losses.nt_xent(a, candidates=b, positive=own, negative=~own)
            for a, b in (pair, pair[::-1])
        ]
        return sum(terms) / 2, Aux(model_state, {})

    return Method(init, encode, loss, heads.unit_embed(encode), GROUPS, group=lambda path: path[0])


def embed_text(params, tokens):
    """Captions int [N, 4] -> [N, D], for `evaluation.retrieval(text, labels, gallery=images,
    …)`."""
    return TOWER.apply({"params": params["text"]}, tokens)
