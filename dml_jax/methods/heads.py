"""Building blocks of the methods' forward passes: backbone, pooling and an embedding layer."""

from typing import Any, Literal, assert_never

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense, LayerNorm, Pooling, global_pool, he_fan_out
from dml_jax.methods.contract import Batch, Embed, Encode, PyTree, Teach, Teaching, input_shape
from dml_jax.numerics import unit

# Initial values of a linear layer from K to D. "linear" is U(±1/sqrt(K)), as in torch.nn.Linear.
# "he" is N(0, 2 / D) with bias 0, which is 2.4 sqrt(K / D) times as long and turns that much more
# slowly at the same learning rate. "whitened" has D = K and is computed from the training images,
# see `whitening`; until then it is the identity.
Init = Literal["linear", "he", "whitened"]


def identity(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Initial kernel [K, K] of a layer that does not change its input."""
    return jnp.eye(shape[0], shape[1], dtype=dtype)


class Embedding(nn.Module):
    """Global pooling and a linear layer."""

    dim: int  # length of the embedding; 0: no linear layer, unless it is whitened
    pooling: Pooling  # pooling of the feature map
    layer_norm: bool = False  # normalises the pooled features, without scale and bias
    initial: Init = "linear"  # initial values of the layer
    bias: bool = True

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Feature map [B, h, w, K] -> [B, dim], or [B, K] if `dim` is 0."""
        x = global_pool(features, self.pooling)
        x = LayerNorm(affine=False)(x) if self.layer_norm else x
        zeros = nn.initializers.zeros_init()
        match self.initial:
            case "linear":
                starts: tuple[Any, Any] = None, None
            case "he":
                starts = he_fan_out, zeros
            case "whitened":
                starts = identity, zeros
            case _:
                assert_never(self.initial)
        dim = x.shape[1] if self.initial == "whitened" else self.dim
        return Dense(dim, self.bias, *starts, name="embedding")(x) if dim else x


def init(backbone: Backbone, head: nn.Module, keys: Array, batch: Batch) -> tuple[PyTree, PyTree]:
    """Initialises a backbone and a head on its feature map from two keys."""
    body, stats = backbone.init(keys[0], input_shape(batch))
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
    """`Hooks.teach` with a classifier of the embeddings, whose parameters are `params[name]`."""

    def teach(params: PyTree, model_state: PyTree, encoded: Array) -> Teaching:
        logits: PyTree = classifier.apply({"params": params[name]}, encoded)
        return Teaching(unit(encoded), logits)

    return teach


def unit_embed(encode: Encode) -> Embed:
    """`Method.embed` that normalises the result of `encode`."""

    def embed(params: PyTree, model_state: PyTree, images: Array) -> Array:
        return unit(encode(params, model_state, images[None], train=False)[0])

    return embed
