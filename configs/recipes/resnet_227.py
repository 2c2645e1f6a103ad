"""The network and the protocol that the authors of MPN also used for its students and for the Group
Loss.

The settings come from the authors' configuration files, unrounded (github.com/dvl-tum/intra_batch).
The code contains details that the paper does not mention: max pooling, random erasing, a standard
deviation of 0.299 instead of 0.229 for red, and two updates of the running batch statistics per
step (activations are recomputed in the backward pass).

Paper and code disagree on test images: the paper resizes them to 256 x 256; its code resizes the
shorter side to 256, which is done here. For the `large` images, the paper gives only the size, 256
x 256; the shorter side of 288 is used by the methods it compares with there.
"""

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
LARGE = {"data.image_size": 256, "data.resize": 288}  # appendix B


def on(
    dataset: str,
    variants: base.Variants,
    *,
    method: Any,
    rate: float,
    decay: float,
    teacher: str = "",
    backbone: Any = BACKBONE,
    erasing: float = 0.5,
    **data: Any,
) -> base.Contents:
    """A method of these authors on a data set.

    Args:
      rate, decay: learning rate and weight decay of all parameters.
      teacher: work directory of the teacher under the authors' protocol, if the method has one.
      data: further options of the data.
    """
    return base.contents(
        f"{dataset}_{method.name}",
        {**PAPER_PROTOCOL, "method.teacher": teacher} if teacher else PAPER_PROTOCOL,
        variants,
        data=Data(
            name=dataset,
            path=f"data/{dataset}",
            crop="random_resized",
            image_size=227,
            resize=256,
            flip=0.5,
            erasing=erasing,
            **data,
        ),
        backbone=backbone,
        method=method,
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
        evaluation=base.EVALUATION[dataset],
    )
