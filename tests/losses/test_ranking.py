"""Soft ranks: gradients and size in memory; the values are in test_public.py."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from dml_jax import losses
from dml_jax.losses import ranking


def test_gradient_of_each_rank(x64: None) -> None:
    """A random weight for each rank, with candidates that are neither wanted nor counted."""
    rng = np.random.default_rng(0)
    s, weights = rng.normal(size=(2, 4, 40))
    wanted, among = rng.random((4, 40)) < 0.4, rng.random((4, 40)) < 0.7
    wanted[0] = True  # more than in any other row
    weighted = jax.jit(lambda s: jnp.sum(weights * ranking.soft_ranks(s, wanted, among, 0.5)))
    check_grads(weighted, (s,), order=1, modes="rev", rtol=1e-6)
    ranks = jax.jit(lambda s: ranking.soft_ranks(s, wanted, among, 1e-9))(s)
    hard = [
        [1 + sum(s[i, k] > s[i, j] for k in range(40) if among[i, k] and k != j) for j in range(40)]
        for i in range(4)
    ]
    np.testing.assert_allclose(ranks, np.where(wanted, np.array(hard, float), 0))


def test_memory_grows_with_the_number_of_pairs() -> None:
    """No array of value and gradient has more than a few times N^2 elements; the naive form has
    N^3."""
    x, labels = np.zeros((256, 8), np.float32), np.repeat(np.arange(64), 4)
    program = jax.jit(jax.grad(lambda x: losses.smooth_ap(x, labels))).lower(x).compile()
    assert program.memory_analysis().temp_size_in_bytes < 256**3  # a quarter of N^3 float32
