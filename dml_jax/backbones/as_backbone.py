"""From a linen module to a `Backbone` of pure functions; random parameters without compiling the network."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.pixels import Pixels, preprocess
from dml_jax.backbones.weights import initialise

Path = tuple[str, ...]
Shape = tuple[int, ...]
Spread = Callable[[Path, Shape], float]
Adapt = Callable[[Any, tuple[int, int]], Any]


class Config(Protocol):
    """What `assemble` asks of every backbone's configuration."""

    @property
    def name(self) -> str: ...
    @property
    def pretrained(self) -> str: ...
    @property
    def pixels(self) -> Pixels: ...


def fan_out(path: Path, shape: Shape) -> float:
    """He et al. 2015, "fan out", for a kernel [k, k, C_in / groups, C_out]: std = sqrt(2 / (k k C_out / groups))."""
    depthwise = shape[2] == 1
    return math.sqrt(2.0 / (shape[0] * shape[1] * (1 if depthwise else shape[-1])))


def fan_in(path: Path, shape: Shape) -> float:
    """He et al. 2015, "fan in", for a kernel [k, k, C_in, C_out]: std = sqrt(2 / (k k C_in))."""
    return math.sqrt(2.0 / math.prod(shape[:-1]))


def _as_it_is(params: Any, image_shape: tuple[int, int]) -> Any:
    return params


def assemble(
    net: nn.Module, channels: int, config: Config, *, spread: Spread, source: str, adapt: Adapt = _as_it_is
) -> Backbone:
    """A `Backbone` around `net(inputs, train)`.

    Args:
      net: module with parameters, perhaps a collection "batch_stats", perhaps a random stream "drop_path".
      channels: of the feature map.
      config: says which weights to start from and how pixels are normalised.
      spread: standard deviation of the normal distribution a kernel or token is drawn from, by path and shape.
        Biases start at zero, scales at one.
      source: where weights for this network are published, for the message when they are missing.
      adapt: (loaded parameters, image shape) -> parameters fit for images of that shape.
    """

    def init(key: jax.Array, image_shape: tuple[int, int]) -> tuple[Any, Any]:
        shapes = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.zeros((1, *image_shape, 3)), False))
        expected = {"params": dict(shapes["params"]), "stats": dict(shapes.get("batch_stats", {}))}
        if config.pretrained != "none":
            params, stats = initialise.load_backbone(config.pretrained, config.name, source)
            loaded = {"params": adapt(params, image_shape), "stats": stats}
            found = initialise.match_backbone(config.pretrained, loaded, expected)
            found = jax.tree.map(jnp.asarray, found)
            return found["params"], found["stats"]
        return _draw(key, expected["params"], spread), _fresh(expected["stats"])

    def apply(
        params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        rngs = {"drop_path": key} if train and key is not None else None
        variables = {"params": params, "batch_stats": stats}
        features, new = net.apply(variables, inputs, train, mutable=["batch_stats"] if train else [], rngs=rngs)
        wide = features.astype(jnp.promote_types(features.dtype, jnp.float32))
        return wide, new.get("batch_stats", stats)

    return Backbone(init, apply, channels, preprocess(config.pixels))


def _fresh(shapes: Any) -> Any:
    """Running statistics before the first batch: mean 0, variance 1; scale 1 and bias 0 where they are fixed."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, float(path[-1].key in ("var", "scale")), jnp.float32), shapes
    )


def _draw(key: jax.Array, shapes: Any, spread: Spread) -> Any:
    """Parameters of the given shapes. All are cut from one draw: drawing each would compile a program for each."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    constants = {"scale": jnp.ones, "bias": jnp.zeros}
    named = [(tuple(p.key for p in path), leaf.shape) for path, leaf in leaves]
    total = sum(math.prod(shape) for path, shape in named if path[-1] not in constants)
    values = jax.jit(partial(jax.random.normal, shape=(total,), dtype=jnp.float32))(key)
    filled, start = [], 0
    for path, shape in named:
        if path[-1] in constants:
            filled.append(constants[path[-1]](shape, jnp.float32))
        else:
            filled.append(_cut(values, start, spread(path, shape), shape))
            start += math.prod(shape)
    return jax.tree_util.tree_unflatten(tree, filled)


@partial(jax.jit, static_argnames="shape")
def _cut(values: jax.Array, start: int, scale: float, shape: Shape) -> jax.Array:
    return scale * jax.lax.dynamic_slice(values, (start,), (math.prod(shape),)).reshape(shape)
