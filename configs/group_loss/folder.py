"""The Group Loss on the user's own image folders."""

from configs.recipes.own_photos import LAYER, Head
from dml_jax.methods import group_loss

HEAD = Head(
    group_loss.Config(embedding_dim=256, pooling="avg", anchors=1),
    {"embedding": LAYER, "classifier": LAYER},
)
WHOLE = None  # not in the study
