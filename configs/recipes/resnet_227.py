"""The network and the protocol that the authors of MPN also used for its students and for the Group
Loss.

The settings come from the authors' configuration files (github.com/dvl-tum/intra_batch). The code
contains details that the paper does not mention: max pooling, random erasing, a standard deviation
of 0.299 instead of 0.229 for red, and two updates of the running batch statistics per step
(activations are recomputed in the backward pass). The paper resizes test images to 256 x 256; its
code resizes the shorter side to 256, which is done here.
"""

from collections.abc import Mapping
from typing import Any

from configs import base
from dml_jax.backbones import resnet
from dml_jax.backbones.contract import Pixels
from dml_jax.config import Data, Group, Train, plugin_module

BACKBONE = resnet.Config(
    pretrained="weights/resnet50", stage_bn_updates=2, pixels=Pixels(std=(0.299, 0.224, 0.225))
)
# After 30 and 50 epochs, the authors' code returns to the best epoch; it decays the learning rate
# only at the first of the two. The clean protocol decays it but does not go back.
PAPER_PROTOCOL = {**base.PAPER_PROTOCOL, "train.reload_best_epochs": (30, 50)}
# Appendix B gives the size of the crop; the methods it compares with there resize to 288.
LARGE = {"data.image_size": 256, "data.resize": 288}


def training(rate: float, decay: float, batch_size: int, images_per_class: int) -> dict[str, Any]:
    """Learning rate and weight decay of all parameters, and a batch."""
    batch = {"batch_size": batch_size, "images_per_class": images_per_class}
    return {"rate": rate, "decay": decay, **batch}


TRAINING = {  # of MPN and its students
    "cub": training(0.0001563663718906821, 6.059722614369727e-06, 54, 4)
    | {"sampler": "redrawn_chunks"},
    "cars": training(0.00036683239911604993, 2.551918610962277e-09, 70, 7),
    "sop": training(0.0002472471515853406, 2.7650277063275255e-13, 90, 6),
    "inshop": training(0.00011265974954242144, 1.0554824926510768e-07, 56, 4),
}


def on(
    dataset: str,
    method: Any,
    variants: base.Variants,
    protocol: Mapping[str, Any] = PAPER_PROTOCOL,
    *,
    rate: float,
    decay: float,
    backbone: Any = BACKBONE,
    **data: Any,
) -> base.Contents:
    """A method of these authors on a data set; see `training`, and `data` are other options."""
    usual: dict[str, Any] = {"sampler": "chunks", "erasing": 0.5}
    return base.on(
        dataset,
        method,
        protocol,
        variants,
        data=Data(crop="random_resized", image_size=227, resize=256, flip=0.5, **{**usual, **data}),
        backbone=backbone,
        train=Train(
            groups=dict.fromkeys(
                plugin_module("method", method.name).GROUPS, Group(rate, weight_decay=decay)
            ),
            optimizer="radam",
            epochs=70,
            schedule="step",
            milestones=(30,),
            gamma=0.1,
            checkpoint_every=1000,
        ),
    )
