"""MPN as a whole: options, losses on and off, dropout, degenerate batches, devices, test-time refinement."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax.backbones.contract import Backbone
from dml_jax.config import Group, Train
from dml_jax.config_schema import close
from dml_jax.errors import ConfigError
from dml_jax.evaluation import reciprocal_neighbors
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.losses.norms import unit
from dml_jax.methods import heads, mpn
from dml_jax.methods.contract import Batch
from dml_jax.train import optimizers, step

SMALL = mpn.Config(embedding_dim=8, heads=2, k=4, k_r=3)
CLASSES = 5


network_init = jax.jit(mpn.network_init, static_argnums=(1, 2))


def toy(dtype: Any = jnp.float32) -> Backbone:
    """One linear layer on every pixel."""

    def apply(params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: Any) -> tuple[jax.Array, Any]:
        return heads.linear(params, inputs).astype(dtype), stats

    return Backbone(
        init=lambda key, shape: (heads.linear_init(key, 3, 7), {}),
        apply=apply,
        channels=7,
        preprocess=lambda images: images.astype(jnp.float32) / 255 - 0.5,
    )


def batch(labels: Any = None, count: int = 16) -> Batch:
    images = np.random.default_rng(0).integers(0, 256, (1, count, 2, 3, 3))
    labels = np.arange(count) // 4 if labels is None else labels
    return Batch(jnp.asarray(images, jnp.uint8), jnp.asarray(labels, jnp.int32), jnp.arange(count, dtype=jnp.int32))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"embedding_dim": 10, "heads": 4}, "method.heads=4: must divide method.embedding_dim=10"),
        ({"layers": 0}, "method.layers=0"),
        ({"heads": 0}, "method.heads=0"),
        ({"temperature": 0.0}, "method.temperature=0.0"),
        ({"smoothing": 1.0}, "method.smoothing=1.0"),
        ({"dropout": 1.0}, "method.dropout=1.0"),
        ({"k": 1}, "method.k=1"),
        ({"k_r": 1}, "method.k_r=1"),
        ({"equations": "printed"}, "method.equations='printed'"),
        ({"losses": "lsce"}, "method.losses='lsce'"),
        ({"tau": 32.0}, "method.tau"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        close(mpn.Config, options, "method")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_attention_is_a_softmax_with_one_more_sender_that_says_nothing(x64: None) -> None:
    rng = np.random.default_rng(1)
    queries, keys = 30 * rng.normal(size=(2, 6, 2, 4))
    scores = np.einsum("rmh,smh->mrs", queries, keys) / 2
    logits = np.concatenate([scores, np.zeros((2, 6, 1))], axis=2)
    mass = np.exp(logits - logits.max(axis=2, keepdims=True))
    expected = (mass / mass.sum(axis=2, keepdims=True))[:, :, :-1]
    np.testing.assert_allclose(mpn.attention(jnp.asarray(queries), jnp.asarray(keys), "authors"), expected, atol=1e-14)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_attention_survives_large_scores(size: float) -> None:
    queries, keys = jnp.full((3, 1, 4), size), jnp.ones((3, 1, 4))
    for equations, total in (("authors", float(size > 0)), ("transformer", 1.0), ("paper", 1.0)):
        weights, pull = jax.vjp(lambda q, e=equations: mpn.attention(q, keys, e), queries)
        np.testing.assert_allclose(weights.sum(axis=-1), total, atol=1e-6)
        assert jnp.isfinite(pull(jnp.ones_like(weights))[0]).all()


def test_initial_values() -> None:
    config = mpn.Config(embedding_dim=64, heads=4, layers=2, concatenate=True)
    params, stats = network_init(jax.random.key(0), config, 50)
    layer = params["layer2"]
    xavier = (6 / 128) ** 0.5
    for name in ("query", "key_value", "output"):
        assert 0.95 * xavier < float(jnp.abs(layer[name]["kernel"]).max()) <= xavier
        assert not layer[name]["bias"].any()
    assert 0.95 / 8 < float(jnp.abs(layer["ff1"]["kernel"]).max()) <= 1 / 8
    assert params["neck"].keys() == {"scale"}
    assert params["classifier"].keys() == {"kernel"}
    assert params["classifier"]["kernel"].shape == (128, 50)
    assert float(params["classifier"]["kernel"].std()) == pytest.approx(0.001, rel=0.05)
    assert stats["mean"].shape == (128,)
    as_printed = dataclasses.replace(config, equations="paper")
    printed, none = jax.eval_shape(lambda key: mpn.network_init(key, as_printed, 50), jax.random.key(0))
    assert printed.keys() == {"layer1", "layer2", "classifier"}
    assert printed["layer1"].keys() == {"query", "key_value", "norm1", "ff1", "ff2", "norm2"}
    assert "bias" not in printed["layer1"]["query"]
    assert not none


def test_dropout_follows_its_key_and_spares_the_mean() -> None:
    config = dataclasses.replace(SMALL, dropout=0.5)
    params, _ = network_init(jax.random.key(0), config, CLASSES)
    x = jax.random.normal(jax.random.key(1), (6, 8))
    run = jax.jit(lambda key: mpn.propagate(params, x, config, key)[-1])
    first, again, other = run(jax.random.key(2)), run(jax.random.key(2)), run(jax.random.key(3))
    np.testing.assert_array_equal(first[0], again[0])
    assert not jnp.array_equal(first[0], other[0])
    np.testing.assert_array_equal(first[1], other[1])  # weights as they are before dropout
    dropped = mpn._dropout(jnp.ones((400, 500)), 0.1, jax.random.key(0))
    assert float((dropped == 0).mean()) == pytest.approx(0.1, abs=0.005)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("losses", ["both", "auxiliary", "mpn"])
@pytest.mark.parametrize("equations", ["authors", "paper"])
def test_what_a_loss_does_not_need_is_not_there(losses: Any, equations: Any) -> None:
    config = dataclasses.replace(SMALL, losses=losses, equations=equations)
    method = mpn.build(config, toy(), CLASSES)
    params, state = jax.eval_shape(method.init, jax.random.key(0), batch())
    assert ("auxiliary" in params) == (losses != "mpn")
    assert ("mpn" in params) == (losses != "auxiliary")
    assert (method.refine is None) == (losses == "auxiliary")
    gradient = jax.value_and_grad(method.loss, has_aux=True)
    (value, (after, terms)), grads = jax.eval_shape(gradient, params, state, batch(), jax.random.key(1))
    assert value.shape == ()
    assert len(terms) == (2 if losses == "both" else 1)
    same = lambda a, b: jax.tree.structure(a) == jax.tree.structure(b)  # noqa: E731
    assert same(after, state)
    assert same(grads, params)


@pytest.mark.parametrize("losses", ["both", "auxiliary"])
def test_training_lowers_the_loss_and_frozen_groups_stay(losses: Any) -> None:
    """Group names do not depend on the losses, so one configuration serves both."""
    config = dataclasses.replace(SMALL, losses=losses, dropout=0.0)
    method = mpn.build(config, toy(), CLASSES)
    groups = dict.fromkeys(method.groups, Group(3e-3)) | {"mpn": Group(3e-3, 0.1, freeze=True)}
    train = Train(groups, steps=30, optimizer="radam")
    optimizer = optimizers.build(train, method, optimizers.factor(train, start=0, stop=30, milestones=()))
    state = jax.jit(lambda key: step.initial(method, optimizer, key, batch()))(jax.random.key(0))
    network = state.params.get("mpn", {})
    update = jax.jit(step.build(method, optimizer))
    losses_seen = []
    for _ in range(30):
        state, logged = update(state, batch(), jax.random.key(0))
        losses_seen.append(float(logged["loss_auxiliary"]))
    assert losses_seen[-1] < 0.9 * losses_seen[0]
    jax.tree.map(np.testing.assert_array_equal, state.params.get("mpn", {}), network)
    assert update._cache_size() == 1


DEGENERATE = {
    "duplicates": (np.ones((8, 7)), np.arange(8) // 4),
    "zero vectors": (np.zeros((8, 7)), np.arange(8) // 4),
    "one class": (np.random.default_rng(0).normal(size=(8, 7)), np.zeros(8)),
    "singletons": (np.random.default_rng(0).normal(size=(8, 7)), np.arange(8) % CLASSES),
    "opposites": (np.outer((-1.0) ** np.arange(8), np.ones(7)), np.arange(8) // 4),
    "large": (1e6 * np.random.default_rng(0).normal(size=(8, 7)), np.arange(8) // 4),
}


@pytest.mark.slow  # the contract has it too, on fewer kinds of batches
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_degenerate_batches_stay_finite(dtype: Any) -> None:
    config = SMALL
    key = jax.random.key(0)
    network, stats = network_init(key, config, CLASSES)
    layer = heads.linear_init(key, 7, 8) | {"bias": jnp.zeros(8)}
    params = {"mpn": network, "auxiliary": heads.linear_init(key, 8, CLASSES), "embedding": layer}

    def total(params: Any, features: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
        embeddings = heads.linear(params["embedding"], heads.pool(features[:, None, None, :], "max"))
        return mpn.loss(params, stats, embeddings, labels, config, key)

    run = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    for name, (features, labels) in DEGENERATE.items():
        found = run(params, jnp.asarray(features, dtype), jnp.asarray(labels, jnp.int32))
        assert found[0][0].dtype == jnp.float32
        for leaf in jax.tree.leaves(found):
            assert jnp.isfinite(leaf).all(), name
    lonely = run(params, jnp.ones((1, 7), dtype), jnp.zeros(1, jnp.int32))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(lonely))


@pytest.mark.slow  # the contract has it too
def test_one_device_equals_eight(x64: None) -> None:
    config = dataclasses.replace(SMALL, dropout=0.0)
    method = mpn.build(config, toy(jnp.float64), CLASSES)
    params, state = jax.jit(method.init)(jax.random.key(0), batch())
    gradient = jax.jit(jax.value_and_grad(method.loss, has_aux=True))
    alone = gradient(params, state, batch(), jax.random.key(1))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = lambda axis: NamedSharding(mesh, PartitionSpec(*[None] * axis, "data"))  # noqa: E731
    spread = Batch(*(jax.device_put(x, rows(a)) for x, a in zip(batch()[:3], (1, 0, 0), strict=True)))
    params, state = jax.device_put((params, state), NamedSharding(mesh, PartitionSpec()))
    together = gradient(params, state, spread, jax.random.key(1))
    close_enough = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)  # noqa: E731
    jax.tree.map(close_enough, alone, together)


def test_refined_queries_are_the_first_nodes_of_their_batches() -> None:
    config = dataclasses.replace(SMALL, layers=2, concatenate=True)
    method = mpn.build(config, toy(), CLASSES)
    network, _ = network_init(jax.random.key(0), config, CLASSES)
    embeddings = unit(jax.random.normal(jax.random.key(1), (20, 8)))
    refined = method.refine({"mpn": network}, {}, embeddings)

    @jax.jit
    def alone(rows: jax.Array) -> jax.Array:
        layers = mpn.propagate(network, mpn.nodes(network, embeddings[rows]), config)
        return unit(mpn.readout([hidden for hidden, _ in layers], config)[0])

    for query, rows in enumerate(reciprocal_neighbors.sets(embeddings, k=4, size=3).batches):
        np.testing.assert_allclose(refined[query], alone(rows), atol=1e-5)


def test_refinement_against_a_gallery() -> None:
    method = mpn.build(SMALL, toy(), CLASSES)
    network, _ = network_init(jax.random.key(0), SMALL, CLASSES)
    queries, gallery = unit(jax.random.normal(jax.random.key(1), (2, 20, 8)))
    refined = method.refine({"mpn": network}, {}, queries, gallery)
    assert refined.shape == (20, 8)
    np.testing.assert_allclose(jnp.linalg.norm(refined, axis=1), 1, rtol=1e-5)
    wide = mpn.build(dataclasses.replace(SMALL, layers=2, concatenate=True), toy(), CLASSES)
    with pytest.raises(ConfigError, match=r"method\.concatenate=True: .* 16 dimensions and the gallery 8"):
        wide.refine({"mpn": network}, {}, queries, gallery)


def test_a_single_image_refines_itself() -> None:
    method = mpn.build(SMALL, toy(), CLASSES)
    network, _ = network_init(jax.random.key(0), SMALL, CLASSES)
    assert jnp.isfinite(method.refine({"mpn": network}, {}, jnp.zeros((1, 8)))).all()


@pytest.mark.parametrize("equations", ["authors", "paper"])
def test_groups_pass_messages_among_themselves(equations: mpn.Equations, x64: None) -> None:
    config = dataclasses.replace(SMALL, layers=2, concatenate=True, equations=equations)
    network, _ = mpn.network_init(jax.random.key(0), config, CLASSES)
    network = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), network)
    embeddings = unit(jax.random.normal(jax.random.key(1), (9, 8), jnp.float64))
    # Row 4 comes three times: its first place counts, and a batch may hold a row twice.
    batches = np.array([[0, 4, 2, 7, 8], [1, 4, 4, 3, 0], [5, 6, 7, 8, 1]])
    groups = Groups(batches, refined=4)
    refined = mpn.build(config, toy(), CLASSES).refine({"mpn": network}, {}, embeddings, groups=groups)
    assert refined.shape == (9, 16)
    first = {0: (0, 0), 4: (0, 1), 2: (0, 2), 7: (0, 3), 1: (1, 0), 3: (1, 3), 5: (2, 0), 6: (2, 1), 8: (2, 3)}
    for row, (number, place) in first.items():
        layers = mpn.propagate(network, mpn.nodes(network, embeddings[batches[number]]), config)
        alone = unit(mpn.readout([hidden for hidden, _ in layers], config)[place])
        np.testing.assert_allclose(refined[row], alone, rtol=1e-12, atol=1e-14)
