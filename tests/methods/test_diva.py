"""The whole of DiVA: options, subsets of tasks, momentum network and queue, degenerate batches, devices."""

import dataclasses
import itertools
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dml_jax.methods import diva
from dml_jax.methods.contract import Batch, TrainingSet
from dml_jax.methods.diva import equations
from dml_jax.methods.diva.method import Encoded
from dml_jax.train import step
from dml_jax.train.step import TrainState
from tests import toys

SMALL = diva.Config(embedding_dim=6, psi_dim=5, queue_batches=2, rho=(3.0,), temperature=0.1)
DATA = TrainingSet(classes=4, images=16)


def batch(seed: int = 0) -> Batch:
    return toys.batch(2, seed=seed)


@cache
def initial() -> tuple[Any, Any, Any]:
    """(method, parameters, state of the method) with two tasks."""
    config = dataclasses.replace(SMALL, tasks=("discriminative", "selfsimilarity"))
    method = diva.build(config, toys.backbone(), DATA)
    return method, *jax.tree.map(np.asarray, jax.jit(method.init)(jax.random.key(0), batch()))


def loss(method: Any) -> Any:
    """(params, model_state, batch, key) -> (scalar, Aux)."""
    return lambda params, model_state, batch, key: step.loss(
        method, params, model_state, batch, jnp.zeros((), jnp.int32), key
    )


def subsets() -> list[tuple[str, ...]]:
    return [s for n in range(1, 5) for s in itertools.combinations(diva.TASKS, n)]


@pytest.mark.parametrize("tasks", subsets(), ids="+".join)
def test_subsets_of_tasks(tasks: tuple[str, ...]) -> None:
    config = dataclasses.replace(SMALL, tasks=tasks)
    method = diva.build(config, toys.backbone(), DATA)
    params, model_state = jax.eval_shape(method.init, jax.random.key(0), batch())
    value, aux = jax.eval_shape(loss(method), params, model_state, batch(), jax.random.key(1))
    assert value.shape == ()
    contrastive = "selfsimilarity" in tasks
    decorrelated = "discriminative" in tasks and len(tasks) > 1
    assert set(aux.metrics) == {*tasks, *(["decorrelation"] if decorrelated else [])}
    assert (aux.carry is not None) == contrastive
    assert method.hooks.views == 1 + contrastive
    assert ("queue" in model_state) == ("key" in model_state) == contrastive
    assert (method.hooks.fill is not None) == (method.hooks.after is not None) == contrastive
    assert set(params["heads"]) == set(tasks)
    assert len(params["psi"]) == (len(tasks) - 1 if decorrelated else 0)
    following = aux.model_state
    if contrastive:
        following = jax.eval_shape(method.hooks.after, params, following, aux.carry)
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert shapes(following) == shapes(model_state)
    embedded = jax.eval_shape(method.embed, params, model_state, batch().images[0])
    assert embedded.shape == (16, 6 * len(tasks))


def keys_by_hand(network: Any, images: jax.Array) -> np.ndarray:
    """The network in evaluation mode with statistics 0 and 1, then average pooling and head; NumPy float64."""
    network = jax.tree.map(np.asarray, network)
    patches = np.asarray(images, np.float64).reshape(len(images), 2, 4, 2, 4, 3) / 255
    patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(len(images), 4, 48)
    body, head = network["backbone"], network["heads"]["selfsimilarity"]
    x = patches @ body["kernel"] / np.sqrt(1 + 1e-5)
    x = np.maximum(x * body["bn"]["scale"] + body["bn"]["bias"], 0).mean(axis=1)
    y = x @ head["kernel"] + head["bias"]
    return y / np.linalg.norm(y, axis=1, keepdims=True)


def test_momentum_network_and_queue() -> None:
    """Filled with first views; then second views are appended; the key network's batch statistics stay constant."""
    method, first, model_state = initial()
    filled = method.hooks.fill(first, model_state, iter([batch(seed) for seed in (5, 6, 7)]))
    by_hand = np.concatenate([keys_by_hand(first, batch(seed=seed).images[0]) for seed in (5, 6)])
    np.testing.assert_allclose(filled["queue"], by_hand, rtol=1e-4, atol=1e-5)

    optimizer = optax.sgd(0.1)
    update = jax.jit(step.build(method, optimizer))
    network = {"backbone": first["backbone"], "heads": first["heads"]}
    state, queue = TrainState(np.int32(0), first, filled, optimizer.init(first)), by_hand
    for seed in range(3):
        state, _ = update(state, batch(seed=seed), jax.random.key(1))
        queue = np.concatenate([queue[16:], keys_by_hand(network, batch(seed=seed).images[1])])
        updated = {name: jax.tree.map(np.asarray, state.params[name]) for name in network}
        network = jax.tree.map(lambda k, p: 0.9 * k + 0.1 * p, network, updated)
    np.testing.assert_allclose(state.model_state["queue"], queue, rtol=1e-4, atol=1e-5)
    equal = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for name, expected in network.items():
        jax.tree.map(equal, state.model_state["key"][name], expected)
    assert np.abs(state.model_state["backbone"]["bn"]["mean"]).max() > 0.01
    np.testing.assert_array_equal(state.model_state["key"]["stats"]["bn"]["mean"], np.zeros(12))
    np.testing.assert_array_equal(state.model_state["key"]["stats"]["bn"]["var"], np.ones(12))


@pytest.mark.parametrize("dance", ["original", "fixed"])
def test_weights_are_equal_where_all_entries_are_cut_off(dance: Any) -> None:
    """In float32, where the authors' floor of 1e-45 is denormal, a row or column cut off still sums to one."""
    config = dataclasses.replace(SMALL, dance=dance)
    rng = np.random.default_rng(0)
    similarities = rng.uniform(0.1, 0.95, (5, 7))
    cut_off = (slice(None), 2) if dance == "original" else (2, slice(None))
    similarities[cut_off] = rng.uniform(-1, -0.1, similarities[cut_off].shape)
    weights_of = jax.jit(partial(equations.dance_weights, dim=128, config=config))
    weights = np.asarray(weights_of(similarities.astype(np.float32)))
    np.testing.assert_allclose(weights[cut_off], 1 / similarities[cut_off].size, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=0 if dance == "original" else 1), 1, rtol=1e-5)

    log = -126 * np.log(np.maximum(np.sqrt(2 - 2 * similarities), 0.5))
    log -= 62.5 * np.log(1 - np.maximum(2 - 2 * similarities, 0.25) / 4)
    axis = None if dance == "original" else 1
    e = np.where(2 - 2 * similarities > 1.4**2, 0, np.exp(log - log.max(axis=axis, keepdims=True)))
    e = np.maximum(e, 1e-45)
    e /= e.sum(axis=0 if dance == "original" else 1, keepdims=True)
    np.testing.assert_allclose(weights, e, rtol=1e-3, atol=1e-30)


def test_permuted_learners() -> None:
    """Triplets within classes of permuted labels hold images of several classes."""
    labels = np.repeat(np.arange(4), 4)
    classes = {}
    for learners in ("diverse", "permuted"):
        config = dataclasses.replace(SMALL, learners=learners, tasks=("intra",))
        found = equations.mine(jax.random.key(0), {}, jnp.asarray(labels), config)["intra"]
        rows = np.stack([found.anchors, found.positives, found.negatives])
        classes[learners] = labels[rows[:, np.asarray(found.valid)]]
    assert (classes["diverse"] == classes["diverse"][0]).all()
    assert (classes["permuted"] != classes["permuted"][0]).any()


def test_permuted_keys() -> None:
    """The loss of plain NCE for one of the 6 orders of the keys of 3 images, all of which occur;
    no random key is used twice."""
    rng = np.random.default_rng(0)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    q, k, queue = (unit(rng.normal(size=(rows, 6))) for rows in (3, 3, 5))
    options: dict[str, Any] = {"tasks": ("intra", "selfsimilarity"), "base": "triplet"}
    config = dataclasses.replace(SMALL, learners="permuted", dance="off", **options)
    method = diva.build(config, toys.backbone(), DATA)
    images = toys.batch(2, size=3, classes=3)
    embeddings = {"intra": jnp.asarray(q), "selfsimilarity": jnp.asarray(q)}
    encoded = Encoded(jnp.asarray(q), embeddings, keys=jnp.asarray(k))

    @jax.jit
    def term(key: jax.Array) -> jax.Array:
        state = {"queue": jnp.asarray(queue)}
        _, aux = method.loss({"psi": {}}, state, encoded, images, jnp.zeros((), jnp.int32), key)
        return aux.metrics["selfsimilarity"]

    with jax.debug_key_reuse(True):
        found = {round(float(term(jax.random.key(seed))), 4) for seed in range(40)}
    expected = set()
    for order in itertools.permutations(range(3)):
        positive = np.exp((q * k[list(order)]).sum(axis=1) / 0.1)
        value = -np.log(positive / (positive + np.exp(q @ queue.T / 0.1).sum(axis=1))).mean()
        expected.add(round(value, 4))
    assert len(expected) == 6
    assert found == expected


def test_correlation_of_the_heads() -> None:
    """SciPy's Pearson correlation of the similarities of all pairs, averaged over the tasks."""
    rng = np.random.default_rng(0)
    x = {task: rng.normal(size=(5, 3)) for task in ("discriminative", "shared", "intra")}
    pairs = list(itertools.combinations(range(5), 2))
    similar = {task: [rows[i] @ rows[j] for i, j in pairs] for task, rows in x.items()}
    first = similar.pop("discriminative")
    expected = np.mean([stats.pearsonr(first, other)[0] for other in similar.values()])
    assert equations.head_correlation(x) == pytest.approx(expected)
