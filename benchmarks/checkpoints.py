"""How long a checkpoint keeps the training step waiting: written in the background, and before the step goes on.

    python -m benchmarks.checkpoints [--rounds=5]

The state is that of ResNet-50 with Adam (295 MB). Both ways alternate in one process; the figures are medians.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

from dml_jax.backbones import resnet
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, TrainingSet
from dml_jax.train import step
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.step import TrainState


def main() -> None:
    """Prints a table."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=5)
    rounds = flags.parse_args().rounds
    method = baseline.build(baseline.make_config(embedding_dim=512), resnet.build(resnet.Config()), TrainingSet(100, 1))
    numbers = jnp.zeros(8, jnp.int32)
    batch = Batch(jnp.zeros((1, 8, 64, 64, 3), jnp.uint8), numbers, numbers)
    state: TrainState = jax.jit(partial(step.initial, method, optax.adam(1e-4)))(jax.random.key(0), batch)
    waited: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Checkpoints(Path(directory), lambda: state, None, run={})
        for number in range(1, 2 * rounds + 1):
            state = jax.block_until_ready(jax.tree.map(jnp.copy, state._replace(step=jnp.asarray(number, jnp.int32))))
            background = number % 2 == 0
            begin = time.perf_counter()
            checkpoints.save("latest", state, {}, background=background)
            waited[background].append(time.perf_counter() - begin)
            checkpoints.wait()
        checkpoints.close()
    behind, before = (statistics.median(waited[background]) for background in (True, False))
    print("| written | the step waits, s | share |\n|---|--:|--:|")
    print(
        f"| before the step goes on | {before:.2f} | 1 |\n| in the background | {behind:.2f} | {behind / before:.2f} |"
    )


if __name__ == "__main__":
    main()
