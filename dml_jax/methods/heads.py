"""Building blocks of the methods' forward passes: backbone, pooling and an embedding layer."""

from collections.abc import Callable

import flax.linen as nn
import jax

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import PooledDense, Pooling
from dml_jax.methods.contract import Batch, Embed, Encode, PyTree
from dml_jax.numerics import unit

Head = Callable[[PyTree, jax.Array], PyTree]


class Embedding(nn.Module):
    """Global pooling and a linear layer."""

    dim: int  # size of the embedding; 0 for the pooled features without a linear layer
    pooling: Pooling  # how the feature map is pooled
    layer_norm: bool = False  # normalise the pooled features, without scale and bias

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Feature map [B, h, w, K] -> [B, dim], or [B, K] without a linear layer."""
        return PooledDense(self.dim, pooling=self.pooling, layer_norm=self.layer_norm, name="embedding")(features)


def backbone_init(backbone: Backbone, key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
    """(params, batch statistics) of the backbone for the images of a batch."""
    height, width = batch.images.shape[2:4]
    return backbone.init(key, (height, width))


def init(backbone: Backbone, embedding: nn.Module, keys: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
    """(params, model_state) of a backbone and an embedding of its feature map, from the first two of the keys."""
    body, stats = backbone_init(backbone, keys[0], batch)
    head, _ = functional.init(embedding, keys[1], functional.struct(1, 1, 1, backbone.channels))
    return {"backbone": body, **head}, {"backbone": stats}


def encoder(backbone: Backbone, head: Head | nn.Module) -> Encode:
    """`Method.encode` for a head on the feature map of the first view.

    The head is a module, or a function (params, feature map [B, h, w, K]) -> a pytree with one row per image.
    """

    def encode(
        params: PyTree, model_state: PyTree, images: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[PyTree, PyTree]:
        inputs = backbone.preprocess(images[0])
        features, stats = backbone.apply(params["backbone"], model_state["backbone"], inputs, train=train, key=key)
        encoded = head.apply({"params": params}, features) if isinstance(head, nn.Module) else head(params, features)
        return encoded, {**model_state, "backbone": stats}

    return encode


def unit_embed(encode: Encode) -> Embed:
    """`Method.embed` that normalises the result of `encode`."""

    def embed(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        return unit(encode(params, model_state, images[None], train=False)[0])

    return embed
