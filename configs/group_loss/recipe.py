"""Shared by the configurations of the Group Loss (Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé,
ECCV 2020).

The settings follow its authors' code (github.com/dvl-tum/group_loss), unrounded; the embedding is
BN-Inception's pooled features, and converting its weights needs the extra `torch`. There are two
differences. The authors start from a network that was fine-tuned on the training classes for 10
epochs; here, training starts from the ImageNet weights (`--config.init_from` starts from another
run). The authors' sampler repeats the images of small classes until all classes have the same size,
which is not done here.
"""

from typing import Any

from configs import base
from configs.recipes import resnet_227
from dml_jax.backbones import bn_inception
from dml_jax.methods import group_loss


def on(dataset: str, *, anchors: int, temperature: float, **options: Any) -> base.Contents:
    """The Group Loss on a data set; `options` as of `resnet_227.on`."""
    return resnet_227.on(
        dataset,
        {},
        method=group_loss.Config(
            embedding_dim=0, pooling="avg", anchors=anchors, temperature=temperature
        ),
        backbone=bn_inception.Config(pretrained="weights/bn_inception", bn_momentum=0.9),
        erasing=0.0,
        sampler="chunks",
        **options,
    )
