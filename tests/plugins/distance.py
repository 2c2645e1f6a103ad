"""A distance: hyperbolic, in the Poincaré ball."""

import jax.numpy as jnp

from dml_jax.numerics import root


def poincare(a, b):
    """Distances [N, M] of the rows of a [N, D] and b [M, D], which are first mapped into the unit
    ball."""

    def inside(x):
        length = root(1e-12 + jnp.sum(x * x, axis=1, keepdims=True))
        return 0.99 * jnp.tanh(length) * x / length

    a, b = inside(a), inside(b)
    room = (1 - jnp.sum(a * a, axis=1))[:, None] * (1 - jnp.sum(b * b, axis=1))[None]
    squares = jnp.sum((a[:, None] - b[None]) ** 2, axis=2)
    return 2 * jnp.arcsinh(root(squares / room))
