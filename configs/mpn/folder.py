"""MPN on the user's own image folders."""

from configs.recipes.own_photos import DIMENSIONS, LAYER, NETWORK, Head, Whole
from dml_jax.methods import mpn

HEAD = Head(
    mpn.Config(embedding_dim=256, pooling="avg", temperature=0.2),
    {"embedding": LAYER, "auxiliary": LAYER, "mpn": LAYER},
    cluster=True,
)
WHOLE = Whole(
    "MPN",
    mpn.Config(embedding_dim=DIMENSIONS, pooling="avg", temperature=1.0),
    {"backbone": NETWORK, "embedding": LAYER, "auxiliary": LAYER, "mpn": LAYER},
)
