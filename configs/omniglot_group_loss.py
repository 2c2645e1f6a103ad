"""The Group Loss on Omniglot; see configs/recipes/small.py.

One of the four images per class is an anchor, and the priors are sharper than for a pretrained
network.
"""

from configs.recipes.small import on_omniglot
from dml_jax.config import Group
from dml_jax.methods import group_loss

get_config = on_omniglot(
    group_loss.Config(embedding_dim=64, anchors=1, temperature=4.0),
    dict.fromkeys(group_loss.GROUPS, Group(4e-3, weight_decay=1e-4)),
)
