"""Small layers the papers put on top of a backbone, as functions of their parameters. Torch's conventions."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone
from dml_jax.losses.norms import at_least_float32

Pooling = Literal["avg", "max", "avg+max"]


class Forward(Protocol):
    def __call__(
        self, params: Any, state: Any, images: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]: ...


def forward(backbone: Backbone, head: Callable[[Any, jax.Array], jax.Array]) -> Forward:
    """From uint8 images [B, H, W, 3] to (the head's output, statistics of the backbone).

    Args:
      backbone: reads `params["backbone"]` and `state["backbone"]`.
      head: (params, feature map [B, h, w, K]) -> array.
    """

    def apply(
        params: Any, state: Any, images: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        inputs = backbone.preprocess(images)
        features, stats = backbone.apply(params["backbone"], state["backbone"], inputs, train=train, key=key)
        return head(params, features), stats

    return apply


def pool(features: jax.Array, kind: Pooling) -> jax.Array:
    """Global pooling of a feature map [B, h, w, K] -> [B, K], in at least float32; "avg+max" is the sum of both."""
    features = at_least_float32(features)
    average = features.mean(axis=(1, 2))
    if kind == "avg":
        return average
    count, _, _, channels = features.shape
    places = features.reshape(count, -1, channels)
    # Chosen by index, not by equality with the maximum: a compiler may compute the two to different last bits, and
    # the gradient of a maximum that nothing equals is 0 / 0.
    chosen = jnp.argmax(places, axis=1)[:, None, :] == jnp.arange(places.shape[1])[None, :, None]
    largest = jnp.sum(jnp.where(chosen, places, 0), axis=1)
    return largest if kind == "max" else average + largest


def linear_init(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """Torch's default: kernel [inputs, outputs] and bias [outputs], both U(±1/sqrt(inputs))."""
    bound = inputs**-0.5
    kernel, bias = jax.random.split(key)
    return {
        "kernel": jax.random.uniform(kernel, (inputs, outputs), minval=-bound, maxval=bound),
        "bias": jax.random.uniform(bias, (outputs,), minval=-bound, maxval=bound),
    }


def linear(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """x [..., inputs] -> [..., outputs]."""
    y = x @ params["kernel"]
    return y + params["bias"].reshape((1,) * (y.ndim - 1) + (-1,)) if "bias" in params else y


def layer_norm(x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """Each row of x [B, D] to mean 0 and (biased) variance 1; no learned scale or shift."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)


def batch_norm_init(size: int) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """(params, stats) of a batch normalisation over [B, size]."""
    return (
        {"scale": jnp.ones(size), "bias": jnp.zeros(size)},
        {"mean": jnp.zeros(size), "var": jnp.ones(size)},
    )


def batch_norm(
    params: dict[str, jax.Array],
    stats: dict[str, jax.Array],
    x: jax.Array,
    *,
    train: bool,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> tuple[jax.Array, dict[str, Any]]:
    """Batch normalisation of x [B, D] as torch does it.

    In training the batch's biased variance normalises, and the unbiased one enters the running variance with weight
    `momentum`. `params` without a "bias" has none.

    Returns:
      ([B, D], stats).
    """
    if train:
        mean, var, count = x.mean(axis=0), x.var(axis=0), x.shape[0]
        unbiased = var * (count / max(count - 1, 1))
        stats = jax.tree.map(
            lambda old, new: ((1 - momentum) * old + momentum * jax.lax.stop_gradient(new)).astype(old.dtype),
            stats,
            {"mean": mean, "var": unbiased},
        )
    else:
        mean, var = stats["mean"], stats["var"]
    y = (x - mean[None]) * (jax.lax.rsqrt(var + epsilon) * params["scale"])[None]
    return y + params["bias"][None] if "bias" in params else y, stats
