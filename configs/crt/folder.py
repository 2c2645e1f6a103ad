"""CRT on the user's own image folders."""

from configs.recipes.own_photos import DIMENSIONS, FASTER, LAYER, NETWORK, Head, Whole
from dml_jax.methods import crt

HEAD = Head(
    crt.Config(embedding_dims=(128, 256), prototypes=(16, 16), hidden_dim=128),
    {"prototypes": FASTER, "embedding": FASTER},
    batch_size=32,
)
WHOLE = Whole(
    "CRT",
    crt.Config(embedding_dims=(DIMENSIONS, 1024), prototypes=(16, 16), hidden_dim=128),
    {"backbone": NETWORK, "prototypes": LAYER, "embedding": LAYER},
)
