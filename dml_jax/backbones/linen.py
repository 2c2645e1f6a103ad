"""From a Linen module and its configuration to a `Backbone`."""

from collections.abc import Callable, Collection
from dataclasses import asdict

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone, Config, ImageShape, PyTree
from dml_jax.backbones.pixels import preprocess
from dml_jax.backbones.weights import pretrained
from dml_jax.numerics import at_least_float32


def _unchanged(params: PyTree, image_shape: ImageShape) -> PyTree:
    return params


def as_backbone(
    network: nn.Module,
    channels: int,
    config: Config,
    *,
    source: str,
    adapt: Callable[[PyTree, ImageShape], PyTree] = _unchanged,
) -> Backbone:
    """`network(inputs, train)` as pure functions; `channels` is the number of channels of its feature map.

    Args:
      network: may have batch statistics ("batch_stats") and draw random numbers named "drop_path".
      config: names the initial weights and the normalisation of pixels.
      source: where weights of this network are published, for the error message without them.
      adapt: (pretrained parameters, image shape) -> parameters for images of that shape.
    """

    def init(key: jax.Array, image_shape: ImageShape) -> tuple[PyTree, PyTree]:
        def random_init() -> tuple[PyTree, PyTree]:
            return functional.init(network, key, functional.struct(1, *image_shape, 3), False)

        if config.pretrained == "none":
            return random_init()
        params, stats, fits = pretrained.load_backbone(asdict(config), source)
        loaded = {"params": adapt(params, image_shape), "stats": stats}
        if not fits:
            expected = dict(zip(("params", "stats"), jax.eval_shape(random_init), strict=True))
            loaded = pretrained.match_backbone(config.pretrained, loaded, expected)
        placed = jax.device_put(loaded)
        return placed["params"], placed["stats"]

    def apply(
        params: PyTree, stats: PyTree, inputs: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        rngs = {"drop_path": key} if key is not None else None
        features, stats = functional.apply(network, params, stats, inputs, train, rngs=rngs, mutable=train)
        return at_least_float32(features), stats

    return Backbone(init, apply, channels, preprocess(config.pixels))


def freeze(backbone: Backbone, names: Collection[str]) -> Backbone:
    """A backbone some of whose modules are never trained: their parameters are kept in `stats`.

    They get no gradient, no weight decay and no optimizer state, and the backward pass ends above them. The backbone
    must have no batch statistics; names at the first level that it does not have are ignored.
    """

    def init(key: jax.Array, image_shape: ImageShape) -> tuple[PyTree, PyTree]:
        params, _ = backbone.init(key, image_shape)
        fixed = {name: params.pop(name) for name in names if name in params}
        return params, fixed

    def apply(
        params: PyTree, stats: PyTree, inputs: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        features, _ = backbone.apply(params | stats, {}, inputs, train=train, key=key)
        return features, stats

    return backbone._replace(init=init, apply=apply)


def on_features(backbone: Backbone) -> Backbone:
    """A backbone that is never trained and whose inputs in training may be features that it computed before.

    Its parameters and statistics are all kept in `stats`. Inputs of the shape of `pooled_cells` pass through unchanged;
    images are encoded as in evaluation.
    """

    def init(key: jax.Array, image_shape: ImageShape) -> tuple[PyTree, PyTree]:
        params, stats = (traverse_util.flatten_dict(tree) for tree in backbone.init(key, image_shape))
        return {}, traverse_util.unflatten_dict(params | stats)

    def preprocess(images: jax.Array) -> jax.Array:
        return images if is_cells(images) else backbone.preprocess(images)

    def is_cells(inputs: jax.Array) -> bool:
        return inputs.shape[1:] == (1, 2, backbone.channels)

    def apply(
        params: PyTree, stats: PyTree, inputs: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        if is_cells(inputs):
            return inputs, stats
        return backbone.apply(stats, stats, inputs, train=False)[0], stats

    return Backbone(init, apply, backbone.channels, preprocess)


def pooled_cells(maps: jax.Array) -> jax.Array:
    """A feature map of two cells with the mean and the maximum of a larger one, so that global pooling gives the same.

    float [B, h, w, K] -> float [B, 1, 2, K]: the maximum, and twice the mean less the maximum.
    """
    mean, largest = maps.mean(axis=(1, 2)), maps.max(axis=(1, 2))
    return jnp.stack([largest, 2 * mean - largest], axis=1)[:, None]
