"""Everything a run remembers between two steps."""

from typing import Any, NamedTuple

import jax


class State(NamedTuple):
    """Checkpointed as a whole.

    Attributes:
      step: int32 [], number of updates made.
      params: trained parameters, nested dict.
      method: the method's own state (batch statistics, queue, momentum encoder), nested dict.
      optimizer: the optimizer's state.
    """

    step: jax.Array
    params: Any
    method: Any
    optimizer: Any
