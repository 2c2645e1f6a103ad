"""Rectified Adam (Liu et al., ICLR 2020) as implemented in the code of Seidenschwarz et al. (ICML 2021).

    m_t   = b1 m_{t-1} + (1 - b1) g_t,     v_t = b2 v_{t-1} + (1 - b2) g_t^2
    rho   = rho_inf - 2 t b2^t / (1 - b2^t),     rho_inf = 2 / (1 - b2) - 1
    r     = sqrt((1 - b2^t) (rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
    u_t   = r / (1 - b1^t) m_t / (sqrt(v_t) + eps)   if rho >= 5, else   m_t / (1 - b1^t)

With the usual b2 the first five updates are momentum SGD. `optax.scale_by_radam` adds eps to the root of the
bias-corrected v; here it is added to the root of v itself, which matters where gradients are tiny.
"""

import math
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class RAdamState(NamedTuple):
    """Number of updates so far, int32 [], and the moments m and v, shaped like the parameters."""

    steps: jax.Array
    mean: Any
    square: Any


def scale_by_radam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> optax.GradientTransformation:
    """The direction u of an update, without learning rate, sign and decay."""
    limit = 2 / (1 - b2) - 1
    log_b1, log_b2 = (math.log(max(b, sys.float_info.min)) for b in (b1, b2))

    def init(params: Any) -> RAdamState:
        mean, square = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))  # two buffers, because both are donated
        return RAdamState(jnp.zeros((), jnp.int32), mean, square)

    def update(updates: Any, state: RAdamState, params: Any = None) -> tuple[Any, RAdamState]:
        steps = optax.safe_increment(state.steps)
        t = steps.astype(float)
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, updates)
        square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.square, updates)
        # 1 - b2^t starts near 0; expm1 keeps its digits in float32.
        growth = -t * log_b2
        rho = limit - 2 * t / jnp.expm1(growth)
        rectified = rho >= 5
        safe = jnp.where(rectified, rho, 5)
        factor = (safe - 4) / (limit - 4) * (safe - 2) / safe * limit / (limit - 2)
        size = jnp.where(rectified, jnp.sqrt(-jnp.expm1(-growth) * factor), 1) / -jnp.expm1(t * log_b1)

        def direction(m: jax.Array, v: jax.Array) -> jax.Array:
            return size.astype(m.dtype) * jnp.where(rectified, m / (jnp.sqrt(v) + eps), m)

        return jax.tree.map(direction, mean, square), RAdamState(steps, mean, square)

    return optax.GradientTransformation(init, update)
