"""Embeddings for any number of images: every architecture and method is traced with a symbolic batch size."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from tests import toys
from tests.contract.methods import every_method, method


@pytest.mark.parametrize(
    ("module", "config"),
    [
        pytest.param(bn_inception, bn_inception.Config(), marks=pytest.mark.slow),
        pytest.param(googlenet, googlenet.Config(), marks=pytest.mark.slow),
        (deit, deit.Config(depth=1, width=32, heads=2, patch=8)),
        (mit, mit.Config(depths=(1, 1, 1, 1), widths=(4, 8, 8, 8), heads=(1, 2, 2, 2))),
        (resnet, resnet.Config(depths=(1, 1), widths=(4, 8), dtype="bfloat16")),
    ],
)
def test_every_architecture(module: Any, config: Any) -> None:
    backbone = module.build(config)
    params, stats = backbone.init(jax.random.key(0), (32, 32))
    (batch,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, 32, 32, 3), jnp.uint8)

    def features(images: jax.Array) -> jax.Array:
        return backbone.apply(params, stats, backbone.preprocess(images), train=False)[0]

    assert str(jax.eval_shape(features, images).shape[0]) == "b"


@every_method
def test_every_method(name: str) -> None:
    made = method(name)
    example = toys.batch(made.hooks.views)
    variables = jax.eval_shape(made.init, jax.random.key(0), example)
    (batch,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, *example.images.shape[2:]), jnp.uint8)
    assert str(jax.eval_shape(made.embed, *variables, images).shape[0]) == "b"
