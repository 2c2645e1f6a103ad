"""The smallest method with a teacher: its embeddings learn the cosines of the teacher's."""

from typing import Any

import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone
from dml_jax.config.fields import PositiveInt, section
from dml_jax.errors import ConfigError
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, TrainingSet
from dml_jax.numerics import unit

GROUPS = ("backbone", "embedding")


@section
class Config:
    """Options of the method."""

    name: str = "tests.train.pupil"
    teacher: str = ""
    largest: PositiveInt = 2**20  # number of dimensions of a teacher


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    embedding = heads.Embedding(8, "avg")
    encode = heads.encoder(backbone, embedding)

    def init(key: jax.Array, batch: Batch) -> Any:
        return heads.init(backbone, embedding, jax.random.split(key), batch)

    def loss(params: Any, model_state: Any, encoded: jax.Array, batch: Batch, step: jax.Array, key: jax.Array) -> Any:
        taught = batch.teacher(batch.images[0]).embeddings
        if taught.shape[1] > config.largest:
            raise ConfigError(f"method.teacher={config.teacher!r}: has embeddings of {taught.shape[1]} dimensions")
        rows = unit(encoded)
        return jnp.mean((rows @ rows.T - taught @ taught.T) ** 2), Aux(model_state, {})

    return Method(init, encode, loss, heads.unit_embed(encode), GROUPS, hooks=Hooks(teacher=config.teacher))
