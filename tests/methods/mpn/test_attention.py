"""Attention of MPN against its own forward pass, and its statistics against loops."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import layers
from dml_jax.methods.contract import TrainingSet
from dml_jax.methods.mpn import method as mpn
from tests import toys

CLASSES = 4


@pytest.mark.parametrize("equations", ["authors", "paper"])
def test_rows_are_those_of_the_forward_pass(
    equations: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is `teach`, which runs the network as training does, without dropout."""
    config = mpn.Config(embedding_dim=8, heads=2, layers=2, equations=equations)
    method = mpn.build(config, toys.backbone(), TrainingSet(CLASSES, 16))
    batch = toys.batch(1, classes=CLASSES)
    params, model_state = method.init(jax.random.key(0), batch)
    attend, used = layers.attend, []

    def watched(weights: jax.Array, values: jax.Array) -> jax.Array:
        used.append(weights)
        return attend(weights, values)

    @jax.jit
    def forward(params: Any, model_state: Any, images: jax.Array) -> jax.Array:
        encoded, _ = method.encode(params, model_state, images, train=False)
        method.hooks.teach(params, model_state, encoded)
        return jnp.stack(used)

    with monkeypatch.context() as patched:
        patched.setattr("dml_jax.methods.mpn.method.attend", watched)
        expected = forward(params, model_state, batch.images)
    network = mpn.MessagePassingNetwork(config, CLASSES)
    found = jax.jit(partial(mpn.batch_attention, method.encode, network))(
        params, model_state, batch.images
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.shape == (2, 2, 16, 16)
    total = np.asarray(found).sum(axis=-1)
    assert (total < 0.99).all() if equations == "authors" else np.allclose(total, 1, atol=1e-5)


def test_attention_statistics() -> None:
    """KL from uniform, weight on the same class and on the node itself; rows that sum to less than
    1 are normalised."""
    rng = np.random.default_rng(0)
    weights = rng.random((2, 3, 5, 5)) * 0.2
    weights[0, 0, 0] = [0.3, 0, 0, 0, 0]
    weights[1] = 0.15
    labels = np.array([0, 0, 1, 1, 1])
    found = mpn.attention_statistics(mpn.normalised(weights), labels)
    for layer, head in np.ndindex(2, 3):
        divergence, own = [], []
        for i in range(5):
            p = weights[layer, head, i] / weights[layer, head, i].sum()
            divergence.append(sum(x * np.log(x / 0.2) for x in p if x > 0))
            own.append(sum(p[j] for j in range(5) if labels[j] == labels[i]))
        assert found.divergence[layer, head] == pytest.approx(np.mean(divergence), abs=1e-12)
        assert found.same_class[layer, head] == pytest.approx(np.mean(own))
        differences = []
        for i in range(5):
            p = weights[layer, head, i] / weights[layer, head, i].sum()
            others = [j for j in range(5) if j != i]
            mates = [p[j] for j in others if labels[j] == labels[i]]
            strangers = [p[j] for j in others if labels[j] != labels[i]]
            differences.append(5 * (np.mean(mates) - np.mean(strangers)))
        assert found.preference[layer, head] == pytest.approx(np.mean(differences))
    np.testing.assert_allclose(found.divergence[1], 0, atol=1e-12)
    np.testing.assert_allclose(found.same_class[1], (2 * 2 / 5 + 3 * 3 / 5) / 5)


def test_preference_of_nodes_that_have_both_kinds() -> None:
    """Uniform weights prefer nothing, also in batches with lone images or a single class."""
    for labels in ([0, 0, 1, 2, 3], [0, 0, 0, 0, 0], [0, 1, 2, 3, 4]):
        found = mpn.attention_statistics(np.full((1, 2, 5, 5), 0.2), np.array(labels))
        np.testing.assert_allclose(found.preference, 0, atol=1e-12)
