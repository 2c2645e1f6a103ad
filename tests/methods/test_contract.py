"""Wrapping the functions of a method; shapes of images and of other arrays. What trained models teach: logits of their
loss, or embeddings alone."""

from typing import Any

import jax
import numpy as np
import pytest

from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, Hooks, Method, Refresh, input_shape, map_functions
from tests import toys
from tests.methods.taught import DATA, check_logits, teach
from tests.plugins import method as plugin


def named(name: str) -> Any:
    return lambda *_: name


def test_every_function_of_parameters_is_wrapped() -> None:
    """Also those of hooks, without naming them; what is not there, `init`, paths and values stay."""
    of_params = {name: named(name) for name in ("after", "fill", "refine")}
    refresh = Refresh(3, named("features"), named("update"))
    hooks = Hooks(**of_params, refresh=refresh, history=("queue",), views=2)
    core = [named(name) for name in ("init", "encode", "loss", "embed")]
    kept = {"groups": ("a", "b"), "group": named("group"), "distance": "euclidean"}
    method: Any = Method(*core, **kept, hooks=hooks)
    found: Any = map_functions(lambda f: lambda *given: f"wrapped {f(*given)}", method)
    assert found.init is core[0]
    assert {name: getattr(found, name) for name in kept} == kept
    for name in ("encode", "loss", "embed"):
        assert getattr(found, name)({}) == f"wrapped {name}"
    for name in of_params:
        assert getattr(found.hooks, name)({}) == f"wrapped {name}"
    wrapped = found.hooks.refresh
    assert (wrapped.epochs, wrapped.features({}, {}, 0)) == (3, "wrapped features")
    assert wrapped.update() == "wrapped update"
    assert found.hooks.teach is None
    assert (found.hooks.views, found.hooks.history, found.hooks.teacher) == (2, ("queue",), "")


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2, 4, 8, 9, 3), "uint8", (8, 9)),
        ((2, 4, 8, 9, 3), "float32", (8, 9, 3)),
        ((2, 4, 8, 9, 4), "uint8", (8, 9, 4)),
        ((2, 4, 3), "uint8", (3,)),
    ],
)
def test_shapes_of_images_and_other_arrays(shape: Any, dtype: str, expected: Any) -> None:
    images: Any = np.zeros(shape, dtype)
    assert input_shape(Batch(images, images, images)) == expected


@pytest.mark.parametrize("name", ["cross_entropy", "normalized_softmax", "arcface", "cosface"])
def test_classifiers_teach_the_logits_of_their_loss(name: str) -> None:
    options = {"margin": 0.0} if name in ("arcface", "cosface") else {}
    config = baseline.make_config(name, options, embedding_dim=8)
    check_logits(baseline.build(config, toys.backbone(), DATA))


def test_methods_without_a_classifier_teach_no_logits() -> None:
    """A baseline of pairs, and a method without the hook."""
    pairs = baseline.build(baseline.make_config("triplet", embedding_dim=8), toys.backbone(), DATA)
    for method in (pairs, plugin.build(plugin.Config(embedding_dim=8), toys.backbone(), DATA)):
        batch = toys.batch(1)
        params, state = toys.drawn(method)
        outputs = teach(method, params, state, batch)
        assert outputs.logits is None
        embeddings = jax.jit(method.embed)(params, state, batch.images[0])
        np.testing.assert_allclose(outputs.embeddings, embeddings, rtol=1e-6)
