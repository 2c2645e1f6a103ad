"""Options of GoogLeNet with batch norm."""

from dml_jax.options.backbones import Dtype, FreezeBatchNorm, Pixels
from dml_jax.options.fields import Probability, section


@section
class Config:
    """Options of GoogLeNet with batch norm."""

    name: str = "googlenet"
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    transform_input: bool = True  # as in training of the published weights; omitted by the authors of HIST
    freeze_bn: FreezeBatchNorm = False  # use the running statistics in training, too, and never update them
    freeze_bn_affine: bool = False  # do not train or decay the scales and biases of batch norms
    bn_momentum: Probability = 0.1  # weight of the new batch in the running statistics (PyTorch's convention)
    pixels: Pixels = Pixels()
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well
