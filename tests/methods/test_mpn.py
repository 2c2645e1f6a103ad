"""MPN: choice of losses, dropout, test-time refinement, placebos, statistics of its attention, and
what it teaches a student."""

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import functional
from dml_jax.methods.contract import Method, TrainingSet
from dml_jax.methods.mpn import method as mpn
from dml_jax.methods.mpn import refinement
from dml_jax.methods.mpn.refinement import Groups
from dml_jax.numerics import unit
from dml_jax.train import step
from tests import toys
from tests.methods import taught

SMALL = mpn.Config(embedding_dim=8, heads=2, k=4, k_r=3)
CLASSES, KEY = 5, jax.random.key(0)
DATA = TrainingSet(CLASSES, 16)


@cache
def network_and_params(config: mpn.Config) -> tuple[mpn.MessagePassingNetwork, Any]:
    network = mpn.MessagePassingNetwork(config, CLASSES)
    shape = functional.struct(1, config.embedding_dim)
    init = jax.jit(lambda key: functional.init(network, key, shape, False)[0])
    return network, jax.tree.map(np.asarray, init(KEY))


def embeddings_of_length_one(*shape: int) -> np.ndarray:
    x = np.random.default_rng(1).normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def refined_together(network: mpn.MessagePassingNetwork, params: Any, embeddings: jax.Array) -> jax.Array:
    """All nodes of one batch refined, [N, d] or [N, L d], of unit length."""
    nodes = network.apply({"params": params}, embeddings, method="initial_nodes")
    outputs = network.apply({"params": params}, nodes, method="propagate")
    return unit(mpn.readout(outputs, network.config))


def test_nodes_of_the_printed_equations_start_from_the_embeddings_themselves(x64: None) -> None:
    """h^0 = f; with the authors' equations only the direction of f matters. The layers of both are
    compared with the authors' in tests/golden/test_mpn.py."""
    f = 3 * np.random.default_rng(2).normal(size=(5, 8))
    for equations in ("paper", "authors"):
        config = dataclasses.replace(SMALL, equations=equations)
        network, params = network_and_params(config)
        start = partial(network.apply, {"params": params}, method="initial_nodes")
        np.testing.assert_allclose(start(3 * f), start(f) * (3 if equations == "paper" else 1))
        if equations == "paper":
            np.testing.assert_array_equal(start(f), f)


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
        drawn = {"train": True, "rngs": {"dropout": key}, "method": "propagate"}
        return network.apply({"params": params}, x, **drawn)[0]

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
    assert (not method.hooks.refine) == (losses == "auxiliary")
    gradient = jax.value_and_grad(partial(step.loss, method), has_aux=True)
    given = params, state, toys.batch(1), jnp.int32(0), jax.random.key(1)
    (value, aux), grads = jax.eval_shape(gradient, *given)
    assert value.shape == ()
    assert len(aux.metrics) == (2 if losses == "both" else 1)
    same = lambda a, b: jax.tree.structure(a) == jax.tree.structure(b)  # noqa: E731
    assert same(aux.model_state, state)
    assert same(grads, params)


def reciprocal(method: Method, params: Any, embeddings: dict[str, np.ndarray]) -> np.ndarray:
    """The refined queries; a gallery must stay as it is."""
    run: Any = None
    found, facts = dict(method.hooks.refine)["reciprocal"]({"mpn": params}, {}, embeddings, run)
    assert facts == {}
    assert found.get("gallery") is embeddings.get("gallery")
    return found["test"]


def test_refined_queries_are_the_first_nodes_of_their_batches() -> None:
    config = dataclasses.replace(SMALL, layers=2, concatenate=True)
    method = mpn.build(config, toys.linear(), DATA)
    network, params = network_and_params(config)
    embeddings = embeddings_of_length_one(20, 8).astype(np.float32)
    refined = reciprocal(method, params, {"test": embeddings})
    batches = refinement.reciprocal_sets(embeddings, k=4, size=3).batches
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
    refined = reciprocal(method, params, {"test": queries, "gallery": gallery})
    assert refined.shape == (20, 8)
    np.testing.assert_allclose(np.linalg.norm(refined, axis=1), 1, rtol=1e-5)
    # And of a single image.
    alone = {"test": np.zeros((1, 8), np.float32)}
    assert np.isfinite(reciprocal(method, params, alone)).all()


@pytest.mark.parametrize("equations", ["authors", "paper"])
def test_refinement_in_given_groups(equations: mpn.Equations, x64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(SMALL, layers=2, concatenate=True, equations=equations)
    network, params = network_and_params(config)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    embeddings = embeddings_of_length_one(9, 8)
    # Row 4 occurs three times, twice in one batch; its first occurrence is used.
    batches = np.array([[0, 4, 2, 7, 8], [1, 4, 4, 3, 0], [5, 6, 7, 8, 1]])
    made: Any = lambda kind, points, run: (Groups(batches, refined=4), {"clusters": 3})  # noqa: E731
    monkeypatch.setattr(refinement, "groups", made)
    refine = dict(mpn.build(config, toys.linear(), DATA).hooks.refine)["ward"]
    parts, run = {"test": embeddings[:5], "gallery": embeddings[5:]}, None
    found, facts = refine({"mpn": params}, {}, parts, run)
    assert facts == {"clusters": 3}
    assert [len(found[name]) for name in parts] == [5, 4]
    refined = np.concatenate([*found.values()])
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
    np.testing.assert_allclose(mpn.placebo_weights(weights, "uniform"), 1 / 6, rtol=1e-6)
    np.testing.assert_array_equal(mpn.placebo_weights(weights, "none"), np.stack([np.eye(6)] * 2))
    first = mpn.placebo_weights(weights[:, :2], "none")
    np.testing.assert_array_equal(first, np.stack([np.eye(2, 6)] * 2))
    permuted = np.asarray(mpn.placebo_weights(weights, "permuted"))
    order = [int(np.argmin(abs(weights[0, :, 0] - row[0]))) for row in permuted[0]]
    assert sorted(order) == list(range(6)) != order
    np.testing.assert_array_equal(permuted, weights[:, order])
    np.testing.assert_array_equal(mpn.placebo_weights(weights, "attention"), weights)


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


@pytest.mark.parametrize("equations", ["authors", "paper"])
def test_attention_of_a_batch(equations: Any) -> None:
    """That of all layers without dropout, from the embeddings before message passing."""
    config = mpn.Config(embedding_dim=8, heads=2, layers=2, equations=equations)
    method, network = mpn.build(config, toys.backbone(), DATA), mpn.MessagePassingNetwork(config, CLASSES)
    (params, state), images = toys.drawn(method), toys.batch(1).images

    @jax.jit
    def both(params: Any, state: Any, images: jax.Array) -> Any:
        nodes = network.apply({"params": params["mpn"]}, method.embed(params, state, images[0]), method="initial_nodes")
        outputs = network.apply({"params": params["mpn"]}, nodes, method="propagate")
        found = mpn.batch_attention(method.encode, network, params, state, images)
        return found, jnp.stack([attention for _, attention in outputs])

    found, expected = both(params, state, images)
    assert found.shape == (2, 2, 16, 16)
    if equations == "authors":  # whose nodes are of unit length
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    else:
        np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-5)
        assert np.ptp(found) > 0.01


def test_attention_statistics() -> None:
    """KL from uniform, weight on the same class and on the node itself; rows that sum to less than 1 are normalised."""
    rng = np.random.default_rng(0)
    weights = rng.random((2, 3, 5, 5)) * 0.2
    weights[0, 0, 0] = [0.3, 0, 0, 0, 0]
    weights[1] = 0.15
    labels = np.array([0, 0, 1, 1, 1])
    found = mpn.attention_statistics(mpn.normalise_rows(weights), labels)
    same, itself = labels[:, None] == labels[None], np.eye(5, dtype=bool)
    mates, strangers = same & ~itself, ~same
    for place in np.ndindex(2, 3):
        p = weights[place] / weights[place].sum(axis=1, keepdims=True)
        divergence = np.where(p > 0, p * np.log(np.maximum(p, 1e-9) / 0.2), 0).sum(axis=1)
        assert found.divergence[place] == pytest.approx(divergence.mean(), abs=1e-12)
        assert found.same_class[place] == pytest.approx((p * same).sum(axis=1).mean())
        near, far = ((p * kind).sum(axis=1) / kind.sum(axis=1) for kind in (mates, strangers))
        assert found.preference[place] == pytest.approx(5 * np.mean(near - far))
    np.testing.assert_allclose(found.divergence[1], 0, atol=1e-12)
    np.testing.assert_allclose(found.same_class[1], (2 * 2 / 5 + 3 * 3 / 5) / 5)


def test_preference_of_nodes_that_have_both_kinds() -> None:
    """Uniform weights prefer nothing, also in batches with lone images or a single class."""
    for labels in ([0, 0, 1, 2, 3], [0, 0, 0, 0, 0], [0, 1, 2, 3, 4]):
        found = mpn.attention_statistics(np.full((1, 2, 5, 5), 0.2), np.array(labels))
        np.testing.assert_allclose(found.preference, 0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"layers": 2, "equations": "paper", "losses": "mpn", "dropout": 0}, {"losses": "auxiliary"}]
)
def test_logits_are_those_of_the_loss(options: dict[str, Any]) -> None:
    config = mpn.Config(embedding_dim=8, temperature=1, smoothing=0, **options)
    taught.check_logits(mpn.build(config, toys.backbone(), taught.DATA))


def test_embeddings_are_refined() -> None:
    """Without dropout, and with the running statistics of the neck."""
    config = mpn.Config(embedding_dim=8, layers=2, concatenate=True, dropout=0.5)
    method, batch = mpn.build(config, toys.backbone(), taught.DATA), toys.batch(1)
    params, state = toys.drawn(method)
    network = mpn.MessagePassingNetwork(config, taught.CLASSES)

    @jax.jit
    def both_layers(params: Any, state: Any, images: jax.Array) -> jax.Array:
        embeddings, outputs = method.embed(params, state, images), []
        nodes = network.apply({"params": params["mpn"]}, embeddings, method="initial_nodes")
        for i in (1, 2):
            layer = {"params": params["mpn"][f"layer{i}"]}
            nodes, _ = mpn.MessagePassingLayer(config).apply(layer, nodes, nodes, False)
            outputs.append(nodes)
        return jnp.concatenate(outputs, axis=1)

    h = np.asarray(both_layers(params, state, batch.images[0]), float)
    # The running mean and variance start at 0 and 1.
    scaled = h / np.sqrt(1 + 1e-5) * params["mpn"]["neck"]["scale"]
    logits = scaled @ np.asarray(params["mpn"]["classifier"]["kernel"], float)
    found = taught.teach(method, params, state, batch)
    np.testing.assert_allclose(found.embeddings, h / np.linalg.norm(h, axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(found.logits, logits, atol=1e-5)
