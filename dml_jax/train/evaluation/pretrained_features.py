"""Published weights as they are: the features of the network as embeddings, the baseline that training has to beat.

The embedding of an image is the class token of a vision transformer, or the average of the feature map of any other
network, scaled to unit length.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from dml_jax import config as configs
from dml_jax.backbones.contract import Backbone, PyTree
from dml_jax.backbones.weights import store
from dml_jax.config import Config, Data, Evaluation, Train
from dml_jax.config.fields import validate
from dml_jax.errors import CheckpointError, ConfigError, WeightsError
from dml_jax.methods.contract import Batch, Method, zeros
from dml_jax.numerics import unit
from dml_jax.train.state import TrainState

LARGEST = 224  # pixels
BATCH = 32  # images at once


def is_converted(directory: Path) -> bool:
    """Whether a directory holds converted weights rather than a run."""
    return (directory / store.METADATA).exists()


def image_side(directory: Path) -> int:
    """Side in pixels of the images for a network: those that its weights were learned for.

    Transformers for images of more than `LARGEST` pixels get images of that size.
    """
    metadata = store.read_metadata(directory)
    side: int = min(metadata.get("image_shape", (LARGEST,)))
    return min(LARGEST, side) if metadata["architecture"].get("name") in ("deit", "siglip", "vit") else side


def load(directory: Path, checkpoint: str = "reported", dtype: str | None = None) -> tuple[Config, Method, TrainState]:
    """A network from `dml-jax convert` as the model of a run at step 0, with activations of `dtype` or float32."""
    if checkpoint != "reported":
        raise CheckpointError(f"--checkpoint={checkpoint}: {directory} holds published weights, not checkpoints")
    architecture = store.read_metadata(directory)["architecture"]
    architecture |= {"pretrained": str(directory)} | ({"dtype": dtype} if dtype else {})
    try:
        backbone = validate(configs.module("backbone", architecture.get("name")).Config, architecture)
    except ConfigError as error:
        raise WeightsError(f"{directory / store.METADATA}: {error}; convert the weights again") from error
    side = image_side(directory)
    recorded = store.read_metadata(directory)
    resize = round(side / recorded.get("crop_fraction", 0.875))
    interpolation = recorded.get("interpolation", "bilinear")
    data = Data(name="folder", crop="centre", image_size=side, resize=resize, interpolation=interpolation)
    train = Train(groups={}, steps=1)
    config = Config(directory.name, data, backbone, None, train, evaluation=Evaluation(batch_size=BATCH))
    method = features(backbone)
    params, model_state = method.init(jax.random.key(0), zeros(1, (side, side)))
    return config, method, TrainState(jnp.zeros((), jnp.int32), params, model_state, ())


def features(config: Any) -> Method:
    """The network of a backbone's configuration as a method that cannot be trained."""
    if "output" in (field.name for field in fields(config)):
        config = replace(config, output="class")
    backbone: Backbone = configs.module("backbone", config.name).build(config)

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, stats = backbone.init(key, (batch.images.shape[2], batch.images.shape[3]))
        return {"backbone": params}, {"backbone": stats}

    def embed(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        maps, _ = backbone.apply(params["backbone"], model_state["backbone"], backbone.preprocess(images), train=False)
        return unit(maps.mean(axis=(1, 2)))

    def untrained(*_: Any, **__: Any) -> NoReturn:
        raise ConfigError(f"backbone.pretrained={config.pretrained!r}: has no method, so it cannot be trained")

    return Method(init, untrained, untrained, embed, groups=(), group=untrained)
