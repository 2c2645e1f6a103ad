"""HIST on the user's own image folders."""

from configs.recipes.own_photos import DIMENSIONS, FASTER, LAYER, NETWORK, Head, Whole
from dml_jax.config import Group
from dml_jax.methods import hist

DISTRIBUTIONS = Group(1e-1, weight_decay=1e-4)
HEAD = Head(
    hist.Config(embedding_dim=256, hidden_dim=256, pooling="avg", tau=8.0, alpha=1.0),
    {"embedding": FASTER, "distributions": DISTRIBUTIONS, "hgnn": Group(1e-3)},
)
WHOLE = Whole(
    "HIST",
    hist.Config(embedding_dim=DIMENSIONS, hidden_dim=DIMENSIONS, pooling="avg", tau=8.0, alpha=1.0),
    {"backbone": NETWORK, "embedding": LAYER, "distributions": DISTRIBUTIONS, "hgnn": Group(1e-3)},
    frozen=True,
)
