"""Options of MPN."""

from typing import Literal

from dml_jax.options.fields import AtLeastTwo, Fraction, Positive, PositiveInt, require, section
from dml_jax.options.methods import Pooling

Equations = Literal["authors", "transformer", "paper"]
GROUPS = ("backbone", "embedding", "auxiliary", "mpn")  # of parameters


@section
class Config:
    """Options of MPN; the defaults are those of the authors' CUB run."""

    name: str = "mpn"
    equations: Equations = "authors"  # "transformer": the authors' with a plain softmax; "paper": as printed
    layers: PositiveInt = 1  # L, message passing layers
    heads: PositiveInt = 2  # M, attention heads
    concatenate: bool = False  # classify the concatenated outputs of all layers instead of those of the last layer
    embedding_dim: PositiveInt = 512  # d
    losses: Literal["both", "auxiliary", "mpn"] = "both"  # "auxiliary": without the message passing network
    temperature: Positive = 0.2  # T, divides the logits of both losses
    smoothing: Fraction = 0.1  # epsilon of the label smoothing
    dropout: Fraction = 0.1  # of attention weights, messages, and twice in FF
    pooling: Pooling = "max"  # of the feature map
    k: AtLeastTwo = 30  # reciprocal neighbours for the batches at test time
    k_r: AtLeastTwo = 7  # images per batch at test time, including the query

    def __post_init__(self) -> None:
        rule = f"must divide embedding_dim={self.embedding_dim}"
        require(self.embedding_dim % self.heads == 0, "heads", self.heads, rule)
