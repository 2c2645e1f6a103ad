"""A method: proxies that are attracted to the embeddings of their class, with a learned
temperature."""

import jax
import jax.numpy as jnp

from dml_jax.config.fields import Positive, PositiveInt, section
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Method

GROUPS = ("backbone", "embedding", "classes")


@section
class Config:
    """Options of the method."""

    name: str = "tests.plugins.method"
    embedding_dim: PositiveInt = 16  # D
    temperature: Positive = 0.1  # at the start


def build(config, backbone, data):
    embedding = heads.Embedding(config.embedding_dim, "avg")
    encode = heads.encoder(backbone, embedding)

    def init(key, batch):
        keys = jax.random.split(key, 3)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        proxies = jax.random.normal(keys[2], (data.classes, config.embedding_dim))
        params["classes"] = {"proxies": proxies, "log_temperature": jnp.log(config.temperature)}
        return params, model_state

    def loss(params, model_state, encoded, batch, step, key):
        def unit(x):
            return x / jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True) + 1e-12)

        cosines = unit(encoded) @ unit(params["classes"]["proxies"]).T
        logits = cosines / jnp.exp(params["classes"]["log_temperature"])
        own = jnp.take_along_axis(logits, batch.labels[:, None], axis=1)[:, 0]
        value = jnp.mean(jax.nn.logsumexp(logits, axis=1) - own)
        return value, Aux(
            model_state, {"accuracy": jnp.mean(jnp.argmax(logits, axis=1) == batch.labels)}
        )

    return Method(init, encode, loss, heads.unit_embed(encode), GROUPS, group=lambda path: path[0])
