"""Options of MPN."""

from typing import Annotated, Literal

from dml_jax.options.fields import AtLeastTwo, Fraction, Positive, PositiveInt, require, section
from dml_jax.options.methods import Pooling
from dml_jax.options.needs import Needs

Equations = Literal["authors", "transformer", "paper"]
GROUPS = ("backbone", "embedding", "auxiliary", "mpn")  # of parameters
PASSING = Needs("message passing (method.losses='both' or 'mpn')", lambda c: c.method.losses != "auxiliary")
RECIPROCAL = Needs("'reciprocal' in evaluation.refine", lambda c: "reciprocal" in c.evaluation.refine)


@section
class Config:
    """Options of MPN; the defaults are those of the authors' CUB run."""

    name: str = "mpn"
    # "transformer": the authors' with a plain softmax; "paper": as printed.
    equations: Annotated[Equations, PASSING] = "authors"
    layers: Annotated[PositiveInt, PASSING] = 1  # L, message passing layers
    heads: Annotated[PositiveInt, PASSING] = 2  # M, attention heads
    # Classify the concatenated outputs of all layers instead of those of the last layer.
    concatenate: Annotated[bool, PASSING] = False
    embedding_dim: PositiveInt = 512  # d
    losses: Literal["both", "auxiliary", "mpn"] = "both"  # "auxiliary": without the message passing network
    temperature: Positive = 0.2  # T, divides the logits of both losses
    smoothing: Fraction = 0.1  # epsilon of the label smoothing
    dropout: Annotated[Fraction, PASSING] = 0.1  # of attention weights, messages, and twice in FF
    pooling: Pooling = "max"  # of the feature map
    k: Annotated[AtLeastTwo, RECIPROCAL] = 30  # reciprocal neighbours for the batches at test time
    k_r: Annotated[AtLeastTwo, RECIPROCAL] = 7  # images per batch at test time, including the query

    def __post_init__(self) -> None:
        rule = f"must divide embedding_dim={self.embedding_dim}"
        divides = self.losses == "auxiliary" or self.embedding_dim % self.heads == 0
        require(divides, "heads", self.heads, rule)
