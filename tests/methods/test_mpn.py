"""MPN: options, choice of losses, dropout, degenerate batches, devices, test-time refinement."""

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import functional
from dml_jax.config.fields import validate
from dml_jax.errors import ConfigError
from dml_jax.evaluation import refinement_batches
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.methods.contract import TrainingSet
from dml_jax.methods.mpn import method as mpn
from dml_jax.numerics import unit
from dml_jax.train import step
from tests import toys

SMALL = mpn.Config(embedding_dim=8, heads=2, k=4, k_r=3)
CLASSES, KEY = 5, jax.random.key(0)
DATA = TrainingSet(CLASSES, 16)


@cache
def network_and_params(config: mpn.Config) -> tuple[mpn.MessagePassingNetwork, Any]:
    network = mpn.MessagePassingNetwork(config, CLASSES)
    init = jax.jit(
        lambda key: functional.init(
            network, key, functional.struct(1, config.embedding_dim), False
        )[0]
    )
    return network, jax.tree.map(np.asarray, init(KEY))


def embeddings_of_length_one(*shape: int) -> np.ndarray:
    x = np.random.default_rng(1).normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def refined_together(
    network: mpn.MessagePassingNetwork, params: Any, embeddings: jax.Array
) -> jax.Array:
    """All nodes of one batch refined, [N, d] or [N, L d], of unit length."""
    nodes = network.apply({"params": params}, embeddings, method="initial_nodes")
    return unit(
        mpn.readout(network.apply({"params": params}, nodes, method="propagate"), network.config)
    )


def test_nodes_of_the_printed_equations_start_from_the_embeddings_themselves(x64: None) -> None:
    """Eq. 3 to 6 in NumPy, h^0 = f; with the authors' equations only the direction of f matters."""
    config = dataclasses.replace(SMALL, equations="paper", dropout=0.0)
    network, params = network_and_params(config)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    f = 3 * np.random.default_rng(2).normal(size=(5, 8))
    p = params["layer1"]

    def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=1, keepdims=True)
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * scale + bias

    queries, keys_values = f @ p["query"]["kernel"], f @ p["key_value"]["kernel"]
    messages = np.zeros_like(f)
    for head in (slice(0, 4), slice(4, 8)):
        scores = np.exp(queries[:, head] @ keys_values[:, :8][:, head].T / np.sqrt(8))
        messages[:, head] = scores / scores.sum(axis=1, keepdims=True) @ keys_values[:, 8:][:, head]
    g = layer_norm(messages + f, **p["norm1"])
    hidden = np.maximum(g @ p["ff1"]["kernel"] + p["ff1"]["bias"], 0)
    expected = layer_norm(hidden @ p["ff2"]["kernel"] + p["ff2"]["bias"] + g, **p["norm2"])
    refined, _ = jax.jit(partial(network.apply, train=False))({"params": params}, f)
    np.testing.assert_allclose(refined, expected, rtol=1e-9, atol=1e-12)

    network, params = network_and_params(SMALL)
    once, thrice = (
        network.apply({"params": params}, x, method="initial_nodes") for x in (f, 3 * f)
    )
    np.testing.assert_allclose(once, thrice, rtol=1e-9, atol=1e-12)


def test_heads_must_divide_the_dimensions() -> None:
    with pytest.raises(ConfigError, match=r"^method\.heads=4: must divide embedding_dim=10"):
        validate(mpn.Config, {"embedding_dim": 10, "heads": 4}, "method")


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_attention_with_large_scores_is_finite(size: float) -> None:
    queries, keys = np.full((3, 1, 4), size, np.float32), np.ones((3, 1, 4), np.float32)

    @partial(jax.jit, static_argnums=1)
    def attention(queries: jax.Array, equations: mpn.Equations) -> tuple[jax.Array, jax.Array]:
        weights, pull = jax.vjp(lambda q: mpn.attention(q, keys, equations), queries)
        return weights.sum(axis=-1), pull(jnp.ones_like(weights))[0]

    for equations, total in (("authors", float(size > 0)), ("transformer", 1.0), ("paper", 1.0)):
        sums, gradient = attention(queries, equations)
        np.testing.assert_allclose(sums, total, atol=1e-6)
        assert np.isfinite(gradient).all()


def test_dropout() -> None:
    network = mpn.MessagePassingNetwork(dataclasses.replace(SMALL, dropout=0.5), CLASSES)
    _, params = network_and_params(SMALL)
    x = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)

    @jax.jit
    def run(key: jax.Array) -> Any:
        return network.apply(
            {"params": params}, x, train=True, rngs={"dropout": key}, method="propagate"
        )[0]

    first, again, other = run(jax.random.key(2)), run(jax.random.key(2)), run(jax.random.key(3))
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    np.testing.assert_array_equal(first[1], other[1])  # the attention weights before dropout


@pytest.mark.parametrize("losses", ["both", "auxiliary", "mpn"])
@pytest.mark.parametrize("equations", ["authors", "paper"])
def test_only_what_the_losses_need_is_created(losses: Any, equations: Any) -> None:
    config = dataclasses.replace(SMALL, losses=losses, equations=equations)
    method = mpn.build(config, toys.linear(), DATA)
    params, state = jax.eval_shape(method.init, jax.random.key(0), toys.batch(1))
    assert ("auxiliary" in params) == (losses != "mpn")
    assert ("mpn" in params) == (losses != "auxiliary")
    assert (method.hooks.refine is None) == (losses == "auxiliary")
    gradient = jax.value_and_grad(partial(step.loss, method), has_aux=True)
    (value, aux), grads = jax.eval_shape(
        gradient, params, state, toys.batch(1), jnp.int32(0), jax.random.key(1)
    )
    assert value.shape == ()
    assert len(aux.metrics) == (2 if losses == "both" else 1)
    same = lambda a, b: jax.tree.structure(a) == jax.tree.structure(b)  # noqa: E731
    assert same(aux.model_state, state)
    assert same(grads, params)


def test_refined_queries_are_the_first_nodes_of_their_batches() -> None:
    config = dataclasses.replace(SMALL, layers=2, concatenate=True)
    method = mpn.build(config, toys.linear(), DATA)
    network, params = network_and_params(config)
    embeddings = embeddings_of_length_one(20, 8).astype(np.float32)
    refined = method.hooks.refine({"mpn": params}, {}, embeddings)
    batches = refinement_batches.reciprocal_sets(embeddings, k=4, size=3).batches
    alone = jax.jit(jax.vmap(partial(refined_together, network), in_axes=(None, 0)))
    np.testing.assert_allclose(refined, alone(params, embeddings[batches])[:, 0], atol=1e-5)


def test_the_last_layer_computes_only_the_first_nodes() -> None:
    network, params = network_and_params(dataclasses.replace(SMALL, layers=2, concatenate=True))
    propagate = lambda x: network.apply({"params": params}, x, first=2, method="propagate")  # noqa: E731
    outputs = jax.eval_shape(propagate, functional.struct(6, 8))
    assert [(h.shape, a.shape) for h, a in outputs] == [((2, 8), (2, 6, 6)), ((2, 8), (2, 2, 6))]


def test_refinement_against_a_gallery() -> None:
    method = mpn.build(SMALL, toys.linear(), DATA)
    _, params = network_and_params(SMALL)
    queries, gallery = embeddings_of_length_one(2, 20, 8).astype(np.float32)
    refined = method.hooks.refine({"mpn": params}, {}, queries, gallery)
    assert refined.shape == (20, 8)
    np.testing.assert_allclose(np.linalg.norm(refined, axis=1), 1, rtol=1e-5)
    concatenated = mpn.build(
        dataclasses.replace(SMALL, layers=2, concatenate=True), toys.linear(), DATA
    )
    with pytest.raises(
        ConfigError, match=r"method\.concatenate=True: .* 16 dimensions and the gallery 8"
    ):
        concatenated.hooks.refine({"mpn": params}, {}, queries, gallery)


def test_refinement_of_a_single_image() -> None:
    method = mpn.build(SMALL, toys.linear(), DATA)
    _, params = network_and_params(SMALL)
    assert np.isfinite(method.hooks.refine({"mpn": params}, {}, np.zeros((1, 8), np.float32))).all()


@pytest.mark.parametrize("equations", ["authors", "paper"])
def test_refinement_in_given_groups(equations: mpn.Equations, x64: None) -> None:
    config = dataclasses.replace(SMALL, layers=2, concatenate=True, equations=equations)
    network, params = network_and_params(config)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    embeddings = embeddings_of_length_one(9, 8)
    # Row 4 occurs three times, twice in one batch; its first occurrence is used.
    batches = np.array([[0, 4, 2, 7, 8], [1, 4, 4, 3, 0], [5, 6, 7, 8, 1]])
    groups = Groups(batches, refined=4)
    refine = mpn.build(config, toys.linear(), DATA).hooks.refine
    refined = np.asarray(refine({"mpn": params}, {}, embeddings, groups=groups))
    assert refined.shape == (9, 16)
    first: dict[int, tuple[int, int]] = {}
    for place in np.ndindex(3, 4):
        first.setdefault(int(batches[place]), place)
    assert len(first) == 9
    together = jax.jit(partial(refined_together, network))
    expected = [np.asarray(together(params, embeddings[batch])) for batch in batches]
    for row, (number, position) in first.items():
        np.testing.assert_allclose(refined[row], expected[number][position], rtol=1e-12, atol=1e-14)


def test_placebos_of_the_messages() -> None:
    """Rows of weights: 1/S; the unit matrix, also for the first nodes; rows of other nodes."""
    weights = jnp.asarray(np.random.default_rng(0).random((2, 6, 6)), jnp.float32)
    np.testing.assert_allclose(mpn.replaced(weights, "uniform"), 1 / 6, rtol=1e-6)
    np.testing.assert_array_equal(mpn.replaced(weights, "none"), np.stack([np.eye(6)] * 2))
    first = mpn.replaced(weights[:, :2], "none")
    np.testing.assert_array_equal(first, np.stack([np.eye(2, 6)] * 2))
    permuted = np.asarray(mpn.replaced(weights, "permuted"))
    order = [int(np.argmin(abs(weights[0, :, 0] - row[0]))) for row in permuted[0]]
    assert sorted(order) == list(range(6)) != order
    np.testing.assert_array_equal(permuted, weights[:, order])
    np.testing.assert_array_equal(mpn.replaced(weights, "attention"), weights)


@pytest.mark.parametrize("messages", ["uniform", "permuted", "none"])
def test_placebos_have_all_parameters(messages: Any) -> None:
    """Placebos have the same parameters and other outputs; without messages, nodes do not mix."""
    network, params = network_and_params(SMALL)
    changed = dataclasses.replace(SMALL, messages=messages, dropout=0.0)
    other, shape = mpn.MessagePassingNetwork(changed, CLASSES), functional.struct(1, 8)
    of_placebo = jax.eval_shape(lambda key: functional.init(other, key, shape, False)[0], KEY)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, of_placebo)
    x = np.array(embeddings_of_length_one(6, 8), np.float32)
    both = [
        np.asarray(jax.jit(partial(refined_together, net))(params, x))
        for net in (network.clone(config=dataclasses.replace(SMALL, dropout=0.0)), other)
    ]
    assert np.abs(both[0] - both[1]).max() > 1e-3
    if messages == "none":  # a node does not depend on another one
        x[0] *= -1
        moved = np.asarray(jax.jit(partial(refined_together, other))(params, x))
        np.testing.assert_allclose(moved[1:], both[1][1:], atol=1e-6)
