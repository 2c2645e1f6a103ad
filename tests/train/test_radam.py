"""The authors' RAdam: against its formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dml_jax.train.optimizers import scale_by_radam


def reference(gradients: np.ndarray, b1: float, b2: float, eps: float) -> np.ndarray:
    """Updates before the learning rate, scalar arithmetic in Python."""
    m, v = np.zeros(gradients.shape[1:]), np.zeros(gradients.shape[1:])
    limit = 2 / (1 - b2) - 1
    found = []
    for t, g in enumerate(gradients, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        rho = limit - 2 * t * b2**t / (1 - b2**t)
        if rho >= 5:
            root = (1 - b2**t) * (rho - 4) / (limit - 4) * (rho - 2) / rho * limit / (limit - 2)
            found.append(root**0.5 / (1 - b1**t) * m / (np.sqrt(v) + eps))
        else:
            found.append(m / (1 - b1**t))
    return np.stack(found)


def run(rule: optax.GradientTransformation, gradients: jax.Array) -> jax.Array:
    def one(state: optax.OptState, gradient: jax.Array) -> tuple[optax.OptState, jax.Array]:
        update, state = rule.update(gradient, state)
        return state, update

    return jax.jit(lambda g: jax.lax.scan(one, rule.init(g[0]), g)[1])(gradients)


@pytest.mark.parametrize(("b1", "b2", "eps"), [(0.9, 0.999, 1e-8), (0.8, 0.99, 1e-3)])
def test_follows_its_formulas(b1: float, b2: float, eps: float, x64: None) -> None:
    gradients = np.random.default_rng(0).normal(size=(60, 4)) * 10.0 ** np.arange(-9, 3, 3)
    updates = run(scale_by_radam(b1, b2, eps), jnp.asarray(gradients))
    np.testing.assert_allclose(updates, reference(gradients, b1, b2, eps), rtol=1e-8)
