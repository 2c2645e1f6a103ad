"""A random part of the classes for each step of a classifier: An et al., "Partial FC" (ICCVW 2021, CVPR 2022).

The classes of the batch are always part of it; the others are drawn uniformly. Only this part of the classifier's
product is computed, and only these logits are held in memory.

The classes are divided into groups of consecutive rows and the same number is drawn from each, so that devices that
hold a table by rows (`train.shard_classes`) draw from their own rows and exchange none. The groups do not depend on the
devices.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

MOST_GROUPS = 256  # as many devices can share a table


class Groups(NamedTuple):
    """How classes are drawn."""

    number: int  # of groups G
    rows: int  # classes per group R, where the last group may be padded
    drawn: int  # classes S drawn from each group


def groups(classes: int, batch_size: int, fraction: float) -> Groups:
    """As many groups as possible of which each can give the share that is asked for and all classes of a batch.

    The classes of the last group, which may be padded by an eighth, are drawn up to an eighth more often.

    Args:
      classes: C.
      batch_size: B; there are at most as many classes in a batch.
      fraction: of the classes to draw.
    """
    number = MOST_GROUPS
    while number > 1:
        rows = -(-classes // MOST_GROUPS) * MOST_GROUPS // number
        drawn, last = math.ceil(fraction * rows), classes - (number - 1) * rows
        if batch_size <= drawn <= last and 8 * last >= 7 * rows:
            return Groups(number, rows, drawn)
        number //= 2
    return Groups(1, classes, min(classes, max(math.ceil(fraction * classes), batch_size)))


def draw(key: jax.Array, labels: jax.Array, classes: int, layout: Groups) -> tuple[jax.Array, jax.Array]:
    """Draws classes.

    Args:
      key: random key.
      labels: int [B].
      classes: C.
      layout: from `groups`.

    Returns:
      int32 [G, S], rows drawn from each group in increasing order, and int32 [B], the positions of the labels among
      all G S of them.
    """
    shape = (layout.number, layout.rows)
    own = jnp.zeros(shape, bool).reshape(-1).at[labels].set(True).reshape(shape)
    real = jnp.arange(layout.number * layout.rows).reshape(shape) < classes
    score = jnp.where(own, 2, jnp.where(real, jax.random.uniform(key, shape), -1))
    # Sorted, because the compiler would gather the scores of all devices for `top_k`.
    rows = jnp.sort(jnp.argsort(score, axis=1, descending=True)[:, : layout.drawn], axis=1)
    drawn = (rows + layout.rows * jnp.arange(layout.number)[:, None]).reshape(-1)
    return rows, jnp.sum(drawn[None, :] < labels[:, None], axis=1, dtype=jnp.int32)


def take(table: jax.Array, rows: jax.Array, layout: Groups) -> jax.Array:
    """The drawn rows of a table [C, ...] -> [G S, ...]."""
    rest = table.shape[1:]
    padding = layout.number * layout.rows - len(table)
    table = jnp.pad(table, [(0, padding), *[(0, 0)] * len(rest)]).reshape(layout.number, layout.rows, -1)
    return jnp.take_along_axis(table, rows[:, :, None], axis=1).reshape(-1, *rest)
