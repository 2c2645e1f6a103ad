"""What a trained MPN teaches a student: refined embeddings and the logits of its network, or of its
auxiliary loss."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.methods.mpn import method as mpn
from tests import toys
from tests.methods.test_teaching import CLASSES, DATA, check_logits, teach


@pytest.mark.parametrize(
    "options",
    [{"layers": 2, "equations": "paper", "losses": "mpn", "dropout": 0}, {"losses": "auxiliary"}],
)
def test_logits_are_those_of_the_loss(options: dict[str, Any]) -> None:
    config = mpn.Config(embedding_dim=8, temperature=1, smoothing=0, **options)
    check_logits(mpn.build(config, toys.backbone(), DATA))


def test_embeddings_are_refined() -> None:
    """Without dropout, and with the running statistics of the neck."""
    config = mpn.Config(embedding_dim=8, layers=2, concatenate=True, dropout=0.5)
    method, batch = mpn.build(config, toys.backbone(), DATA), toys.batch(1)
    params, state = toys.drawn(method)
    network = mpn.MessagePassingNetwork(config, CLASSES)

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
    taught = teach(method, params, state, batch)
    np.testing.assert_allclose(
        taught.embeddings, h / np.linalg.norm(h, axis=1, keepdims=True), atol=1e-5
    )
    np.testing.assert_allclose(taught.logits, logits, atol=1e-5)
