"""The number of steps of a run whose length is given in minutes (`train.minutes`).

The first steps are timed once, before the run begins. `config.json` records the number of steps, so
that a resumed run is identical, however fast the machine is then.
"""

import time
from dataclasses import replace
from pathlib import Path

import jax

from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.train import experiment as experiments
from dml_jax.train import warm_start
from dml_jax.train.distributed import device_mesh, process_group
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir

UNTIMED, TIMED = 2, 8  # steps; the untimed ones compile the program and fill the buffers


def recorded(config: Config, directory: Path) -> Config:
    """The configuration with the recorded number of steps, if its length is in minutes."""
    if not config.train.minutes or not (directory / "config.json").exists():
        return config
    steps = workdir.read_config(directory)["config"]["train"]["steps"]
    return replace(config, train=replace(config.train, steps=steps))


def timed(experiment: Experiment, console: Console) -> Experiment:
    """The experiment with the number of steps that fit into its minutes; with
    `train.select="folds"`, half of the time trains the folds."""
    config = experiment.config
    console.print(f"timing {TIMED} steps")
    state = warm_start.initial_state(experiment)
    leaves, _ = jax.tree.flatten(state)
    update, start = experiment.jitted_step(state), 0.0
    key = device_mesh.place(experiment.mesh, experiment.key)
    with experiment.batches(0, UNTIMED + TIMED) as batches:
        for step in range(UNTIMED + TIMED):
            if step == UNTIMED:
                jax.block_until_ready(leaves)
                start = time.perf_counter()
            leaves, _ = update(leaves, experiment.device_batch(*next(batches)), key)
        jax.block_until_ready(leaves)
    seconds = (time.perf_counter() - start) / TIMED
    rounds = 2 if config.train.select == "folds" else 1
    exact_steps = 60 * config.train.minutes / (rounds * seconds)
    steps = process_group.decided_by_first(lambda: max(2, round(exact_steps)))
    console.print(f"{config.train.minutes:g} minutes: {steps} steps of {seconds:.2f} seconds")
    config = replace(config, train=replace(config.train, steps=steps))
    built = experiments.build(config, experiment.splits, experiment.mesh)
    return built._replace(teach=experiment.teach, teacher=experiment.teacher)
