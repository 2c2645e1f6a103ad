"""A schedule: cosines that start again (Loshchilov & Hutter, ICLR 2017)."""

import jax.numpy as jnp

from dml_jax.config.fields import PositiveInt


def restarts(steps, *, count: PositiveInt = 3):
    """Factors of all learning rates, by step of `steps`; they fall from 1 to 0 `count` times."""

    def factor(step):
        return 0.5 + 0.5 * jnp.cos(jnp.pi * (step * count / steps % 1))

    return factor
