"""Options of BN-Inception."""

from dml_jax.options.backbones import CAFFE, Dtype, FreezeBatchNorm, Pixels
from dml_jax.options.fields import Probability, section


@section
class Config:
    """Options of BN-Inception."""

    name: str = "bn_inception"
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    freeze_bn: FreezeBatchNorm = False  # use the running statistics in training, too, and never update them
    freeze_bn_affine: bool = False  # do not train or decay the scales and biases of batch norms
    bn_momentum: Probability = 0.1  # weight of the new batch in the running statistics; 0.9 in Proxy-Anchor's, HIST's
    pixels: Pixels = CAFFE
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well
