"""DiVA on the user's own image folders."""

from configs.recipes.own_photos import FASTER, LAYER, NETWORK, Head, Whole
from dml_jax.config import Group
from dml_jax.methods import diva

HEAD = Head(
    diva.Config(
        embedding_dim=64,
        base="triplet",
        rho=(15.0,),
        temperature=0.1,
        ensemble=(1.0, 1.0, 1.0, 1.0),
        queue_batches=10,
    ),
    {"embedding": FASTER, "beta": Group(5e-4), "psi": LAYER},
)
WHOLE = Whole(
    "DiVA", diva.Config(), {"embedding": NETWORK, "beta": Group(5e-4), "psi": Group(1e-4)}
)
