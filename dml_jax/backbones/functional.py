"""Linen modules as pure functions of their parameters and batch statistics, and as backbones."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.interpreters import partial_eval

from dml_jax.backbones.contract import Backbone, Config, ImageShape, PyTree, preprocess
from dml_jax.backbones.convolution import plain
from dml_jax.backbones.weights import converted
from dml_jax.numerics import at_least_float32


def init(module: nn.Module, key: jax.Array, *inputs: Any) -> tuple[PyTree, PyTree]:
    """(params, batch statistics) of a module, nested dicts of float32 arrays, without running it.

    Equals `module.init`, but evaluates only the initialisers. (`module.lazy_init` also compiles
    many small parts of the forward pass.) Inputs may be given by their shapes (`struct`).
    """

    def zeros_of_shape(x: Any) -> Any:
        return jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x

    def variables(key: jax.Array) -> PyTree:
        return module.init(key, *jax.tree.map(zeros_of_shape, inputs))

    with plain():  # tracing the forms of all platforms would take twice as long
        traced, shapes = jax.make_jaxpr(variables, return_shape=True)(key)
    # Removes the forward pass. `instantiate` keeps the key as an argument, even if it is not used.
    initialisers, _ = partial_eval.dce_jaxpr(traced.jaxpr, True, instantiate=True)
    leaves = jax.core.eval_jaxpr(initialisers, traced.consts, key)
    tree = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return tree.get("params", {}), tree.get("batch_stats", {})


def apply(
    module: nn.Module,
    params: PyTree,
    stats: PyTree,
    *inputs: Any,
    rngs: dict[str, jax.Array] | None = None,
    mutable: bool = False,
) -> tuple[PyTree, PyTree]:
    """(outputs, batch statistics) of a module; the statistics are updated if `mutable`."""
    variables, updated = {"params": params, "batch_stats": stats}, ["batch_stats"] * mutable
    outputs, changed = module.apply(variables, *inputs, rngs=rngs, mutable=updated)
    return outputs, changed.get("batch_stats", stats)


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of a float32 input, for `init`."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def as_backbone(
    network: nn.Module,
    channels: int,
    config: Config,
    adapt: Callable[[PyTree, ImageShape], PyTree] = lambda params, _: params,
) -> Backbone:
    """`network(inputs, train)` as pure functions; its feature map has this number of channels.

    The network may have batch statistics ("batch_stats") and random numbers ("drop_path"). `adapt`
    maps pretrained parameters and an image shape to parameters for images of that shape.
    """

    def init_backbone(key: jax.Array, image_shape: ImageShape) -> tuple[PyTree, PyTree]:
        def random_init() -> tuple[PyTree, PyTree]:
            return init(network, key, struct(1, *image_shape, 3), False)

        if config.pretrained == "none":
            return random_init()
        params, stats = converted.load_backbone(asdict(config))
        loaded, expected = (adapt(params, image_shape), stats), jax.eval_shape(random_init)
        trees = ({"params": x[0], "stats": x[1]} for x in (expected, loaded))
        converted.check_shapes(config.pretrained, *map(converted.leaf_shapes, trees))
        return jax.device_put(loaded)

    def apply_backbone(
        params: PyTree,
        stats: PyTree,
        inputs: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        rngs = {"drop_path": key} if key is not None else None
        features, stats = apply(network, params, stats, inputs, train, rngs=rngs, mutable=train)
        return at_least_float32(features), stats

    return Backbone(init_backbone, apply_backbone, channels, preprocess(config.pixels))


def on_features(backbone: Backbone) -> Backbone:
    """A frozen backbone that also accepts its own feature maps.

    All of its variables are in `stats`. Maps with as many channels as its feature maps pass through
    unchanged; images and other arrays are encoded as in evaluation.
    """

    def init(key: jax.Array, image_shape: ImageShape) -> tuple[PyTree, PyTree]:
        params, stats = map(traverse_util.flatten_dict, backbone.init(key, image_shape))
        return {}, traverse_util.unflatten_dict(params | stats)

    def preprocess(images: jax.Array) -> jax.Array:
        return images if is_map(images) else backbone.preprocess(images)

    def is_map(inputs: jax.Array) -> bool:
        return inputs.ndim == 4 and inputs.shape[3] == backbone.channels

    def apply(
        params: PyTree,
        stats: PyTree,
        inputs: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        if is_map(inputs):
            return inputs, stats
        return backbone.apply(stats, stats, inputs, train=False)[0], stats

    return Backbone(init, apply, backbone.channels, preprocess)


def pooled_cells(maps: jax.Array) -> jax.Array:
    """A feature map of two cells that has the mean and the maximum of a larger map.

    float [B, h, w, K] -> float [B, 1, 2, K]: the maximum, and twice the mean less the maximum.
    """
    mean, largest = maps.mean(axis=(1, 2)), maps.max(axis=(1, 2))
    return jnp.stack([largest, 2 * mean - largest], axis=1)[:, None]
