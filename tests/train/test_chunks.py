"""Tests of batches that are encoded in chunks."""

from functools import partial

import jax
import optax

from dml_jax.methods import baseline
from dml_jax.train import method_wrappers, step
from tests import toys


def test_chunks_need_a_fraction_of_the_memory() -> None:
    """The compiler's own figure for a batch whose feature maps are larger than everything else."""
    made = baseline.build(baseline.make_config(embedding_dim=16), toys.backbone(1024), toys.training_set(4))
    optimizer = optax.sgd(0.01)
    batch = toys.batch(1, size=256)
    state = jax.eval_shape(partial(step.initial, made, optimizer), jax.random.key(0), batch)

    def temporary(parts: int) -> int:
        run = jax.jit(step.build(method_wrappers.chunked(made, parts), optimizer))
        memory = run.lower(state, batch, jax.random.key(0)).compile().memory_analysis()
        return memory.temp_size_in_bytes

    assert temporary(16) < temporary(1) / 4
