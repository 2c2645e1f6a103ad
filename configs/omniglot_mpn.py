"""MPN on Omniglot; see configs/recipes/small.py."""

from configs.recipes.small import on_omniglot
from dml_jax.config import Group
from dml_jax.methods import mpn

get_config = on_omniglot(
    mpn.Config(embedding_dim=64, heads=2, temperature=0.2, pooling="avg+max"),
    dict.fromkeys(mpn.GROUPS, Group(4e-3, weight_decay=1e-4))
    | {"mpn": Group(2e-3, weight_decay=1e-4)},
)
