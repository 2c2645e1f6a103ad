"""What a run has on its devices: batches, the train state and the compiled step."""

from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from dml_jax.config import Config
from dml_jax.data import pipeline
from dml_jax.methods.contract import Batch, Method, no_classes, zeros
from dml_jax.train import experiment as experiments
from dml_jax.train import step
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.distributed import xla_flags
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState


def run_key(seed: int) -> jax.Array:
    """The random key of a run; each step folds its number in."""
    return jax.random.key(seed)


def training_batches(experiment: Experiment, start: int, stop: int) -> pipeline.BatchReader[Any]:
    """Reader of this host's rows of the training batches `start` to `stop` - 1; see `pipeline.training`."""
    return pipeline.training(
        experiment.splits["train"],
        experiment.sampler,
        experiment.config.data,
        seed=experiment.config.seed,
        features=experiment.features,
        views=experiment.method.hooks.views,
        start=start,
        stop=stop,
        host=jax.process_index(),
        hosts=jax.process_count(),
    )


def device_batch(experiment: Experiment, images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> Batch:
    """The global batch from this host's rows, with the run's teacher if it has one."""
    batch = meshes.shard_batch(experiment.mesh, images, labels, index)
    return batch._replace(teacher=experiment.teacher.teach) if experiment.teacher else batch


def example_batch(experiment: Experiment) -> Batch:
    """A batch of zeros in the shapes of the run."""
    return zeros(experiment.config.data.batch_size, experiment.shape, experiment.method.hooks.views)


def initial_state(experiment: Experiment) -> TrainState:
    """The state before the first step, a pure function of the seed.

    Each device computes what it holds: a table of classes that is spread over the devices may not fit into one.
    """
    config, method, optimizer = experiment.config, experiment.method, experiment.optimizer
    layout = jax.tree.map(lambda leaf: leaf.sharding, template(experiment))
    key = meshes.replicate(experiment.mesh, jax.random.fold_in(run_key(config.seed), 2**31 - 1))
    batch = example_batch(experiment)
    compiled = partial(jax.jit, out_shardings=layout, compiler_options=xla_flags.unoptimized())
    state: TrainState
    if config.backbone.pretrained == "none":
        state = compiled(step.initial, static_argnums=(0, 1, 4))(method, optimizer, key, batch, config.train.ema)
        return state
    # Weights that are read while the program is traced would be constants in it; as arguments they cost nothing.
    initial = partial(step.initial, method, optimizer, ema=config.train.ema)
    program, shapes = jax.make_jaxpr(initial, return_shape=True)(key, batch)

    def run(weights: list[Any], key: jax.Array, batch: Batch) -> TrainState:
        leaves = jax.core.eval_jaxpr(program.jaxpr, weights, *jax.tree.leaves((key, batch)))
        state: TrainState = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        return state

    state = compiled(run)(program.consts, key, batch)
    return state


_initial = jax.jit(step.initial, static_argnums=(0, 1, 4))  # whose shapes JAX remembers


def state_shapes(
    config: Config, method: Method, optimizer: optax.GradientTransformation, shape: tuple[int, int], mesh: Mesh
) -> TrainState:
    """Shapes, dtypes and shardings of the state of a run on images of `shape`; nothing is computed."""
    batch = zeros(config.data.batch_size, shape, method.hooks.views)
    key = jax.eval_shape(lambda: run_key(config.seed))
    if config.backbone.pretrained == "none":
        shapes = _initial.eval_shape(method, optimizer, key, batch, config.train.ema)
    else:  # the weights that are read would be constants that JAX remembers, too
        shapes = jax.eval_shape(partial(step.initial, method, optimizer, ema=config.train.ema), key, batch)
    shardings = meshes.shardings(mesh, shapes, method.hooks.class_axis)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes, shardings
    )


def template(experiment: Experiment) -> TrainState:
    """Shapes, dtypes and shardings of the experiment's state."""
    return state_shapes(experiment.config, experiment.method, experiment.optimizer, experiment.shape, experiment.mesh)


def jitted_step(experiment: Experiment) -> Any:
    """(state, batch, key) -> (state, metrics), see `step.build`, with the state donated and laid out as before."""
    everywhere: Any = meshes.replicated(experiment.mesh)
    if experiment.method.hooks.class_axis is no_classes:
        layout: Any = TrainState(*(everywhere for _ in TrainState._fields))
    else:
        layout = jax.tree.map(lambda leaf: leaf.sharding, template(experiment))
    ema = experiment.config.train.ema
    update = step.build(experiment.method, experiment.optimizer, experiment.augment, ema=ema)
    return jax.jit(update, donate_argnums=0, out_shardings=(layout, everywhere))


def whole_batch_step(experiment: Experiment) -> Any:
    """The step without `train.chunks`, whose FLOPs are counted: of the body of a loop, XLA counts one repetition."""
    if experiment.config.train.chunks > 1:
        data = experiments.training_set(experiment.splits["train"])
        experiment = experiment._replace(method=experiments.build_method(experiment.config, data))
    return jitted_step(experiment)
