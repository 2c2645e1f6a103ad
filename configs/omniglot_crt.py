"""CRT on Omniglot; see configs/recipes/small.py."""

from configs.recipes.small import on_omniglot
from dml_jax.config import Group
from dml_jax.methods import crt

# Residuals are sums over all positions, so the layers after them need small steps.
HEAD = Group(3e-4, weight_decay=1e-4)
get_config = on_omniglot(
    crt.Config(embedding_dims=(64, 128), prototypes=(16, 16), hidden_dim=64),
    {"backbone": Group(4e-3, weight_decay=1e-4), "prototypes": HEAD, "embedding": HEAD},
)
