"""HIST on vision transformers, with its authors' parameters for ResNet-50."""

from configs.recipes.vit import FASTER, OWN
from dml_jax.methods import hist

TAU, ALPHA = 32.0, {"cub": 1.1, "cars": 0.9}
GROUPS = {"distributions": OWN, "hgnn": FASTER}


def method(dataset: str, width: int) -> hist.Config:
    """The loss on embeddings of this width."""
    return hist.Config(
        embedding_dim=width,
        hidden_dim=width,
        pooling="avg",
        drop_underflow=True,
        tau=TAU,
        alpha=ALPHA[dataset],
    )
