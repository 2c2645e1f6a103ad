"""Between two steps: what a method computes from all training images, e.g. the clusters of DeepCluster.

When it happens and what it yields follow from the configuration and the state alone, so a run that is interrupted
before, during or after a refresh continues in the same way.
"""

import jax

from dml_jax.methods.contract import Embed
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import mesh
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState
from dml_jax.train.testing import embedding


def due_steps(experiment: Experiment) -> frozenset[int]:
    """The numbers of steps after which a refresh is due, including 0; empty if the method has none."""
    due: set[int] = set()
    if experiment.method.refresh:
        epoch = 0
        while (first := experiment.sampler.first_step(epoch)) < experiment.steps:
            due.add(first)
            epoch += experiment.method.refresh.epochs
    return frozenset(due)


def compile_features(experiment: Experiment) -> Embed | None:
    """The jitted features of the method's refresh; None if it has none."""
    refresh = experiment.method.refresh
    return embedding.compile_embedder(experiment, refresh.features) if refresh else None


def refreshed(experiment: Experiment, features: Embed, state: TrainState, stop: Stop) -> TrainState:
    """The state after a refresh.

    Args:
      experiment: its method has a `refresh`.
      features: from `compile_features`.
      state: after one of `due_steps`.
      stop: SIGTERM or Ctrl-C.

    Raises:
      Interrupted: on a signal.
    """
    assert experiment.method.refresh is not None
    found = embedding.embed_split(
        experiment, features, state, experiment.splits["train"], lambda done: stop.raise_if_stopped()
    )
    stream = jax.random.fold_in(experiments.run_key(experiment.config), 2**31 - 2)
    key = jax.random.fold_in(stream, int(state.step))
    local = jax.tree.map(mesh.to_host, (state.params, state.model_state))
    params, model_state = experiments.place(experiment, experiment.method.refresh.update(*local, found, key))
    return state._replace(params=params, model_state=model_state)
