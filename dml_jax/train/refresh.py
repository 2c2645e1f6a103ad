"""Between two steps: what a method learns anew from all training images.

When it happens and what comes of it follow from the configuration and the state alone, so a run that was interrupted
before, meanwhile or afterwards goes on in the same way.
"""

import jax
import numpy as np

from dml_jax.train import experiment, inference, mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.signals import Interrupted, Stop
from dml_jax.train.state import State


def steps(parts: Experiment) -> frozenset[int]:
    """The numbers of updates after which it is due, 0 among them; none where the method has no use for it."""
    found: set[int] = set()
    if parts.method.refresh:
        epoch = 0
        while (first := parts.sampler.start(epoch)) < parts.steps:
            found.add(first)
            epoch += parts.method.refresh.epochs
    return frozenset(found)


def compiled(parts: Experiment) -> inference.Embedder | None:
    """The features that the method asks for, jitted; None where it asks for none."""
    return inference.compiled(parts, parts.method.refresh.features) if parts.method.refresh else None


def refreshed(parts: Experiment, describe: inference.Embedder, state: State, stop: Stop) -> State:
    """The state with what the method has learnt.

    Args:
      parts: the experiment, its method with a `refresh`.
      describe: from `compiled`.
      state: after one of `steps`.
      stop: SIGTERM or Ctrl-C.

    Raises:
      Interrupted: a signal came meanwhile.
    """

    def each(done: int) -> None:
        if stop.signal and jax.process_count() == 1:
            raise Interrupted(stop.signal)

    assert parts.method.refresh is not None
    features = inference.split(parts, describe, state.params, state.method, parts.splits["train"], each)
    stream = jax.random.fold_in(experiment.key(parts.config), 2**31 - 2)
    key = jax.random.fold_in(stream, int(state.step))
    local = jax.tree.map(np.asarray, (state.params, state.method))
    learnt = parts.method.refresh.update(*local, features, key)
    params, remembered = mesh.replicate(parts.mesh, learnt)
    return state._replace(params=params, method=remembered)
