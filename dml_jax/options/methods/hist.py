"""Options of HIST."""

from typing import Literal

from dml_jax.options.fields import NonNegative, NonNegativeInt, Positive, PositiveInt, section
from dml_jax.options.methods import Pooling

Distance = Literal["mahalanobis", "euclidean", "cosine", "manhattan"]
GROUPS = ("backbone", "embedding", "distributions", "hgnn")  # of parameters


@section
class Config:
    """Options of HIST; the defaults are those of the authors' Cars196 run except for `drop_underflow`."""

    name: str = "hist"
    embedding_dim: PositiveInt = 512  # D
    hidden_dim: PositiveInt = 512  # width of the hypergraph network
    hidden_layers: NonNegativeInt = 1  # blocks before its output layer; the reproduction's "L" is this plus one
    tau: Positive = 32.0  # scale of the distances in the distribution loss
    alpha: float = 0.9  # how fast membership decays with distance; if negative, other classes weigh more than one's own
    lambda_s: NonNegative = 1.0  # weight of the hypergraph network's cross-entropy
    distance: Distance = "mahalanobis"  # the others are ablations and leave the variances untrained
    pooling: Pooling = "avg+max"  # of the feature map
    layer_norm: bool = True  # of the embedding, without scale and bias
    drop_underflow: bool = False  # drop samples whose probability underflows to 0 from L_D, as the authors' code does
