"""Options of the Group Loss."""

from typing import Annotated

from dml_jax.options.data import WITHOUT_CLASSES
from dml_jax.options.fields import NonNegative, NonNegativeInt, Positive, section
from dml_jax.options.methods import Pooling
from dml_jax.options.needs import Rule

GROUPS = ("backbone", "embedding", "classifier")  # of parameters
ONLY_CROSS_ENTROPY = "leaves only the cross-entropy"
SOME_LEFT = Rule(
    f"{ONLY_CROSS_ENTROPY}, because all images are anchors; lower it below data.images_per_class",
    lambda c: c.data.sampler in WITHOUT_CLASSES or c.method.anchors < c.data.images_per_class,
    also=("data.images_per_class",),
)
ITERATED = Rule("leaves the probabilities as they are; give 1 or more", lambda c: c.method.iterations > 0)
WEIGHTED = Rule(f"{ONLY_CROSS_ENTROPY}; give a positive weight", lambda c: c.method.weight > 0)


@section
class Config:
    """Options of the Group Loss; the defaults are those of the authors' CUB run."""

    name: str = "group_loss"
    embedding_dim: NonNegativeInt = 0  # of a linear layer after the pooling; 0: the pooled features are the embedding
    pooling: Pooling = "avg"  # of the feature map
    anchors: Annotated[NonNegativeInt, SOME_LEFT] = 2  # images of each class whose label is given
    iterations: Annotated[NonNegativeInt, ITERATED] = 1  # t_end; 1 in the authors' code
    temperature: Positive = 24.0  # T, divides the logits in the priors
    weight: Annotated[NonNegative, WEIGHTED] = 1.0  # of the group loss; the cross-entropy has weight 1
