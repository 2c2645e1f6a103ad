"""Building blocks of the methods' forward passes: backbone, pooling and an embedding layer."""

from typing import Literal

import flax.linen as nn
from jax import Array

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense, LayerNorm, Pooling, global_pool, he_fan_out
from dml_jax.methods.contract import Batch, Embed, Encode, PyTree, Teach, Teaching
from dml_jax.numerics import unit

# Initial values of a linear layer from K to D: as torch.nn.Linear, U(±1/sqrt(K)), or He's
# N(0, 2 / D) with bias 0, which is 2.4 sqrt(K / D) times as long and turns that much more slowly at
# a given learning rate.
Init = Literal["linear", "he"]


class Embedding(nn.Module):
    """Global pooling and a linear layer."""

    dim: int  # size of the embedding; 0 for the pooled features without a linear layer
    pooling: Pooling  # how the feature map is pooled
    layer_norm: bool = False  # normalise the pooled features, without scale and bias
    initial: Init = "linear"  # of the layer
    bias: bool = True

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Feature map [B, h, w, K] -> [B, dim], or [B, K] without a linear layer."""
        x = global_pool(features, self.pooling)
        x = LayerNorm(affine=False)(x) if self.layer_norm else x
        he = self.initial == "he"
        starts = (he_fan_out, nn.initializers.zeros_init()) if he else (None, None)
        return Dense(self.dim, self.bias, *starts, name="embedding")(x) if self.dim else x


def init(backbone: Backbone, head: nn.Module, keys: Array, batch: Batch) -> tuple[PyTree, PyTree]:
    """(params, model_state) of a backbone and a head on its feature map, from two keys."""
    height, width = batch.images.shape[2:4]
    body, stats = backbone.init(keys[0], (height, width))
    head_params, _ = functional.init(head, keys[1], functional.struct(1, 1, 1, backbone.channels))
    return {"backbone": body, **head_params}, {"backbone": stats}


def encoder(backbone: Backbone, head: nn.Module) -> Encode:
    """`Method.encode` for a head on the feature map [B, h, w, K] of the first view."""

    def encode(
        params: PyTree, model_state: PyTree, images: Array, *, train: bool, key: Array | None = None
    ) -> tuple[PyTree, PyTree]:
        inputs = backbone.preprocess(images[0])
        body, stats = params["backbone"], model_state["backbone"]
        features, stats = backbone.apply(body, stats, inputs, train=train, key=key)
        return head.apply({"params": params}, features), {**model_state, "backbone": stats}

    return encode


def teach_by(classifier: nn.Module, name: str) -> Teach:
    """`Hooks.teach` by a classifier of the encoded embeddings, with parameters `params[name]`."""

    def teach(params: PyTree, model_state: PyTree, encoded: Array) -> Teaching:
        logits: PyTree = classifier.apply({"params": params[name]}, encoded)
        return Teaching(unit(encoded), logits)

    return teach


def unit_embed(encode: Encode) -> Embed:
    """`Method.embed` that normalises the result of `encode`."""

    def embed(params: PyTree, model_state: PyTree, images: Array) -> Array:
        return unit(encode(params, model_state, images[None], train=False)[0])

    return embed
