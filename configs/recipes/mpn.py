"""Shared by the configurations of MPN, its students and the Group Loss: the network and the authors' protocol.

The settings of `*_mpn.py` and `*_student.py` come from the authors' configuration files, unrounded
(github.com/dvl-tum/intra_batch). The code contains details that the paper does not mention: max pooling, random
erasing, a standard deviation of 0.299 instead of 0.229 for red, and two updates of the running batch statistics per
step (activations are recomputed in the backward pass).

The settings of the Group Loss follow its authors' code (github.com/dvl-tum/group_loss), unrounded; the embedding is
BN-Inception's pooled features, and converting its weights needs the extra `torch`. There are two differences. The
authors start from a network that was fine-tuned on the training classes for 10 epochs; here, training starts from the
ImageNet weights (`--config.init_from` starts from another run). The authors' sampler repeats the images of small
classes until all classes have the same size, which is not done here.

The paper does not say which form of distillation its students used, so both list its result. Nor does it say whether
the cross-entropy with the labels is kept; here it is.

Paper and code disagree on test images: the paper resizes them to 256 x 256; its code resizes the shorter side to 256,
which is done here. For the `large` images, the paper gives only the size, 256 x 256; the shorter side of 288 is used by
the methods it compares with there.
"""

from typing import Any

from configs import base
from dml_jax.backbones import bn_inception, resnet
from dml_jax.backbones.contract import Pixels
from dml_jax.config import Data, Group, Train, module
from dml_jax.methods import group_loss as losses

BACKBONE = resnet.Config(pretrained="weights/resnet50", stage_bn_updates=2, pixels=Pixels(std=(0.299, 0.224, 0.225)))
# After 30 and 50 epochs, the code of MPN and of the Group Loss returns to the best epoch; it decays the learning rate
# only at the first of the two. The clean protocol decays it but does not go back.
PAPER_PROTOCOL = {**base.PAPER_PROTOCOL, "train.reload_best_epochs": (30, 50)}
LARGE = {"data.image_size": 256, "data.resize": 288}  # appendix B
STUDENTS: base.Variants = {
    "distillation_kl": {"method.kind": "distillation_kl"},
    "imitation": {"method.kind": "imitation", "method.soft_temperature": 1.0},
    "relational": {"method.kind": "relational", "method.weight": 0.01, "method.soft_temperature": 1.0},
}


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
    """MPN, one of its students or the Group Loss on a data set.

    Args:
      rate, decay: learning rate and weight decay of all parameters.
      teacher: of a student under the authors' protocol.
      data: further options of the data.
    """
    return base.contents(
        f"{dataset}_{method.name}",
        {**PAPER_PROTOCOL, "method.teacher": teacher} if teacher else PAPER_PROTOCOL,
        variants,
        data=Data(
            name=dataset, path=f"data/{dataset}", crop="random_resized", image_size=227, resize=256, flip=0.5,
            erasing=erasing, **data,
        ),
        backbone=backbone,
        method=method,
        train=Train(
            groups=dict.fromkeys(module("method", method.name).GROUPS, Group(rate, weight_decay=decay)),
            optimizer="radam",
            epochs=70,
            schedule="step", milestones=(30,), gamma=0.1,
            checkpoint_every=1000,
        ),
        evaluation=base.EVALUATION[dataset],
    )  # fmt: skip


def group_loss(dataset: str, *, anchors: int, temperature: float, **options: Any) -> base.Contents:
    """The Group Loss on a data set; `options` as for `on`."""
    return on(
        dataset,
        {},
        method=losses.Config(embedding_dim=0, pooling="avg", anchors=anchors, temperature=temperature),
        backbone=bn_inception.Config(pretrained="weights/bn_inception", bn_momentum=0.9),
        erasing=0.0,
        sampler="mpn",
        **options,
    )
