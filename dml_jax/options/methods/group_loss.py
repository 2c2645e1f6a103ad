"""Options of the Group Loss."""

from dml_jax.options.fields import NonNegative, NonNegativeInt, Positive, section
from dml_jax.options.methods import Pooling

GROUPS = ("backbone", "embedding", "classifier")  # of parameters


@section
class Config:
    """Options of the Group Loss; the defaults are those of the authors' CUB run."""

    name: str = "group_loss"
    embedding_dim: NonNegativeInt = 0  # of a linear layer after the pooling; 0: the pooled features are the embedding
    pooling: Pooling = "avg"  # of the feature map
    anchors: NonNegativeInt = 2  # images of each class whose label is given; if all are, only cross-entropy is left
    iterations: NonNegativeInt = 1  # t_end; 1 in the authors' code
    temperature: Positive = 24.0  # T, divides the logits in the priors
    weight: NonNegative = 1.0  # of the group loss; the cross-entropy has weight 1
