"""Between two steps: what a method learns anew from all training images.

When it happens and what comes of it follow from the configuration and the state alone, so a run that was interrupted
before, meanwhile or afterwards goes on in the same way.
"""

import jax
import numpy as np

from dml_jax.train import experiment as experiments
from dml_jax.train import inference, mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.signals import Interrupted, Stop
from dml_jax.train.state import TrainState


def steps(experiment: Experiment) -> frozenset[int]:
    """The numbers of updates after which it is due, 0 among them; none where the method has no use for it."""
    found: set[int] = set()
    if experiment.method.refresh:
        epoch = 0
        while (first := experiment.sampler.first_step(epoch)) < experiment.steps:
            found.add(first)
            epoch += experiment.method.refresh.epochs
    return frozenset(found)


def compiled(experiment: Experiment) -> inference.Embedder | None:
    """The features that the method asks for, jitted; None where it asks for none."""
    return inference.compiled(experiment, experiment.method.refresh.features) if experiment.method.refresh else None


def refreshed(experiment: Experiment, describe: inference.Embedder, state: TrainState, stop: Stop) -> TrainState:
    """The state with what the method has learnt.

    Args:
      experiment: the experiment, its method with a `refresh`.
      describe: from `compiled`.
      state: after one of `steps`.
      stop: SIGTERM or Ctrl-C.

    Raises:
      Interrupted: a signal came meanwhile.
    """

    def each(done: int) -> None:
        if stop.signal and jax.process_count() == 1:
            raise Interrupted(stop.signal)

    assert experiment.method.refresh is not None
    features = inference.split(experiment, describe, state.params, state.model_state, experiment.splits["train"], each)
    stream = jax.random.fold_in(experiments.key(experiment.config), 2**31 - 2)
    key = jax.random.fold_in(stream, int(state.step))
    local = jax.tree.map(np.asarray, (state.params, state.model_state))
    learnt = experiment.method.refresh.update(*local, features, key)
    params, model_state = mesh.replicate(experiment.mesh, learnt)
    return state._replace(params=params, model_state=model_state)
