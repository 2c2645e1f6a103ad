"""Options of the backbones, one module each, and what they share."""

from typing import Annotated, Literal

from dml_jax.options.fields import Positive, section
from dml_jax.options.needs import Rule

Dtype = Literal["float32", "bfloat16"]
FreezeBatchNorm = Annotated[
    bool,
    Rule(
        "the running statistics of a network without pretrained weights do not normalise; set it to false, or give "
        "backbone.pretrained or init_from",
        lambda c: not c.backbone.freeze_bn or c.backbone.pretrained != "none" or c.init_from,
    ),
]


@section
class Pixels:
    """(x - mean) / std, where x are pixels rescaled to [0, top], with their channels in `order`."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # in `order`, in [0, top]
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    top: Positive = 1.0  # value of the pixel 255: 1 or 255
    order: Literal["rgb", "bgr"] = "rgb"


CAFFE = Pixels(mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0), top=255.0, order="bgr")  # of BN-Inception's weights
