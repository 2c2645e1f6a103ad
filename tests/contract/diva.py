"""DiVA in the tests of the contract."""

from typing import Any

import jax
import jax.numpy as jnp

from dml_jax.losses.mining import Triplets
from dml_jax.methods import diva
from dml_jax.methods.contract import Batch
from dml_jax.methods.diva import equations
from tests.contract.cases import BODY, DATA, DIM, LARGE_DATA, Large, Small

CONFIG = diva.Config(embedding_dim=8, queue_batches=2, psi_dim=8, rho=(1.0,), temperature=0.1)


def drawn_in_float32(key: jax.Array, embeddings: Any, batch: Batch) -> dict[str, Triplets]:
    """The triplets that DiVA draws in float32; with 64 bits, the same key would give others."""
    with jax.enable_x64(False):
        narrow = jax.tree.map(lambda x: x.astype(jnp.float32), embeddings)
        return equations.mine(key, narrow, batch.labels, CONFIG)


SMALL = {
    "diva": Small(
        lambda body: diva.build(CONFIG, body, DATA),
        in_float64=lambda body: diva.build(CONFIG, body, DATA, miner=drawn_in_float32),
        frozen=lambda tested, trained: tested._replace(keys=trained.keys),
        reverses="dml_jax.methods.diva.equations.reverse_gradient",
    )
}
FROZEN = (CONFIG, ("backbone", "embedding"), {})
WIDE = diva.Config(embedding_dim=DIM, queue_batches=2)
LARGE = {"diva": Large(lambda: (diva.build(WIDE, BODY, LARGE_DATA), None))}
INTERRUPTED = {"diva": ("omniglot_diva", "method.embedding_dim=8", "method.psi_dim=8")}
