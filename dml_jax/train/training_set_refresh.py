"""Between two steps: what a method computes from all training images, e.g. the clusters of DeepCluster.

When it happens and what it yields follow from the configuration and the state alone, so a run that is interrupted
before, during or after a refresh continues in the same way.
"""

from collections.abc import Callable

import jax

from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split
from dml_jax.methods.contract import Method, Refresh
from dml_jax.train.distributed import mesh
from dml_jax.train.evaluation.embedding import Embedder, embed_split
from dml_jax.train.state import TrainState


def due_steps(refresh: Refresh | None, sampler: Sampler, steps: int) -> frozenset[int]:
    """The numbers of steps of a run of `steps` after which a refresh is due, including 0; empty without one."""
    due: set[int] = set()
    if refresh:
        epoch = 0
        while (first := sampler.first_step(epoch)) < steps:
            due.add(first)
            epoch += refresh.epochs
    return frozenset(due)


def refreshed(
    method: Method,
    embedder: Embedder,
    state: TrainState,
    split: Split,
    key: jax.Array,
    on_progress: Callable[[int], None],
) -> TrainState:
    """The state after a refresh, from one after one of `due_steps`; `embedder` computes the features of the method."""
    refresh = method.hooks.refresh
    assert refresh is not None
    found = embed_split(embedder, state, split, on_progress)
    key = jax.random.fold_in(jax.random.fold_in(key, 2**31 - 2), int(state.step))
    local = jax.tree.map(mesh.to_host, (state.params, state.model_state))
    params, model_state = mesh.place(embedder.mesh, refresh.update(*local, found, key), method.hooks.class_axis)
    return state._replace(params=params, model_state=model_state)
