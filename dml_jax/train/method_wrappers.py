"""Wrappers of a method, from the innermost to the outermost:

1. As evaluated (`parameter_groups.as_evaluated`): the backbone, if its group is not trained. It is
   called with train=False, which would switch off erasing inside.
2. Erasing (`data.erasing`) of the backbone's normalised inputs; the method is built on the result.
3. By path (`train.groups`): before everything that needs the group of a parameter.
4. Freezing (`train.groups.NAME.freeze`).
5. Precision (`train.precision`): outside all computation.
6. Chunks (`train.chunks`): outermost, so that a chunk is encoded exactly like a whole batch.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dml_jax import numerics
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.functional import on_features
from dml_jax.config import Config, plugin_module
from dml_jax.config.sections import backbone_is_frozen
from dml_jax.data import augment
from dml_jax.errors import ConfigError
from dml_jax.methods.contract import Method, PyTree, TrainingSet, map_functions
from dml_jax.train import parameter_groups


def _check_frozen(config: Config, method: Method) -> None:
    """Raises ConfigError if a group of the backbone is not frozen, but trained on features."""
    groups = config.train.groups
    patterns = [name for name in groups if name.startswith("backbone/")]
    for name in (method.group(("backbone",)), *patterns):
        if name in groups and not groups[name].freeze:
            raise ConfigError(
                f"train.feature_views={config.train.feature_views}: needs a frozen backbone, "
                f"but train.groups.{name} is not frozen; set its freeze=true, or "
                "train.feature_views=0"
            )


def build_method(config: Config, data: TrainingSet) -> Method:
    """The method of a configuration with all wrappers."""
    backbone = plugin_module("backbone", config.backbone.name).build(config.backbone)
    if not isinstance(backbone, Backbone):
        raise ConfigError(
            f"backbone.name={config.backbone.name!r}: its build() returns a "
            f"{type(backbone).__name__}, not a Backbone; adapt it as in docs/guides/extend.md"
        )
    methods, groups = plugin_module("method", config.method.name), config.train.groups
    if config.train.feature_views:
        backbone = on_features(backbone)
    untrained = {name for name, group in groups.items() if group.freeze}

    def build_on(backbone: Backbone) -> Method:
        erased = with_erasing(backbone, config.data.erasing)
        return parameter_groups.by_path(methods.build(config.method, erased, data), groups)

    method = build_on(backbone)
    if config.train.feature_views:
        _check_frozen(config, method)
    if method.group(("backbone",)) in untrained:
        random = not backbone_is_frozen(config)
        method = build_on(parameter_groups.as_evaluated(backbone, random=random))
    method = parameter_groups.freezing(method, groups)
    return chunked(computed_in(method, config.train.precision), config.train.chunks)


def with_erasing(backbone: Backbone, share: float) -> Backbone:
    """The backbone, which erases boxes in this share of its normalised training inputs."""
    if not share:
        return backbone

    def apply(
        params: PyTree, stats: PyTree, inputs: jax.Array, /, *, train: bool, key: Any = None
    ) -> tuple[jax.Array, PyTree]:
        if train and key is not None:
            key_boxes, key = jax.random.split(key)
            inputs = augment.erase(inputs, key_boxes, share)
        return backbone.apply(params, stats, inputs, train=train, key=key)

    return backbone._replace(apply=apply)


def computed_in(method: Method, precision: str) -> Method:
    """The method with its products and convolutions in "float32", "tensorfloat32" or "bfloat16".

    float32 is exact everywhere; by default, JAX would use tensorfloat32 on GPUs and bfloat16 on
    TPUs. The other two apply to the backbone and the products of heads and classifiers; bfloat16
    also to the backbone's activations (`backbone.dtype`). Everything else, and heads in evaluation,
    stays in float32 with full precision.
    """

    def within(backbone: str, heads: str) -> Any:
        def wrap(function: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                with jax.default_matmul_precision(backbone), numerics.heads_in(heads):
                    return function(*arguments, **options)

            return call

        return wrap

    backbone = backbone_products(precision)
    return map_functions(within("highest", "float32"), method)._replace(
        encode=within(backbone, precision)(method.encode),
        loss=within("highest", precision)(method.loss),
        embed=within(backbone, "float32")(method.embed),
    )


def backbone_products(precision: str) -> str:
    """The `jax.default_matmul_precision` of a backbone for a `train.precision`."""
    return "tensorfloat32" if precision == "tensorfloat32" else "highest"


def chunked(method: Method, chunks: int) -> Method:
    """The method, which encodes a training batch in this number of chunks.

    The forward pass keeps only the encoded images; the backward pass encodes each chunk again for
    its gradient (GradCache: Gao et al., "Scaling deep contrastive learning batch size under
    memory limited setup", RepL4NLP 2021). `encode` must not change batch statistics. Each chunk
    draws its own random numbers (erasing, dropped paths).
    """
    if chunks == 1:
        return method

    def encode(
        params: PyTree, model_state: PyTree, images: jax.Array, *, train: bool, key: Any = None
    ) -> tuple[PyTree, PyTree]:
        if not train:
            return method.encode(params, model_state, images, train=False, key=key)

        @jax.checkpoint
        def encode_chunk(chunk: tuple[jax.Array, jax.Array | None]) -> PyTree:
            rows, key = chunk
            return method.encode(params, model_state, rows, train=True, key=key)[0]

        views, size = images.shape[:2]
        # Chunk i has the rows i + chunks * j: each device computes its own rows of every chunk.
        split = jnp.moveaxis(images.reshape(views, size // chunks, chunks, *images.shape[2:]), 2, 0)
        keys = None if key is None else jax.random.split(key, chunks)

        def together(leaf: jax.Array) -> jax.Array:  # [chunks, B / chunks, ...] -> [B, ...]
            return jnp.moveaxis(leaf, 0, 1).reshape(size, *leaf.shape[2:])

        return jax.tree.map(together, jax.lax.map(encode_chunk, (split, keys))), model_state

    return method._replace(encode=encode)
