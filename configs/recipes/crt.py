"""CRT as section 4.1 of the paper describes it, with documented choices where it is silent; no code is public.

Variants: the backbones `googlenet`, `bn_inception`, `resnet50`, `deit`, `mit_b1` instead of MiT-B2 (Table 5); each also
with the suffix `-ms`, the multi-similarity loss alone, which is the table's baseline; `ms_printed`, that loss with the
values printed in its paper (beta 50, base 1) instead of those of its code (40 and 0.5), since the paper does not say
which it uses; `branch2` and `mit_b1-branch2`, the 1,024-dimensional embedding of the second branch is tested, for which
no results are published.

Stated in the paper: image size, batch, ImageNet weights, initial learning rate 3e-5, weights of the losses, 128 and
1024 dimensions, 64 shared prototypes. Not stated, and taken from the code of the multi-similarity loss and of the first
author's earlier work (github.com/kanshichao/CBML): Adam with weight decay 5e-4, images resized to 256 before cropping
16 % or more of the area, frozen batch norm. Not stated anywhere: the stochastic depth of MiT, for which the rate of its
authors' code is used (`drop_path=0.1`); the width of the hidden layers of Gamma, 512; the length. 40 epochs, with the
learning rate divided by 10 after 16 and 32, are on CUB close to the 3,000 steps with decays after 1,200 and 2,400 of
the multi-similarity loss's code.
"""

from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, without_protocol
from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.config import Group, Train
from dml_jax.methods import crt

BACKBONES: dict[str, Any] = {
    "mit_b2": replace(mit.mit_b2(), pretrained="weights/mit_b2", drop_path=0.1),
    "mit_b1": replace(mit.mit_b1(), pretrained="weights/mit_b1", drop_path=0.1),
    "deit": replace(deit.deit_small(), pretrained="weights/deit_small"),
    "resnet50": replace(resnet.resnet50(), pretrained="weights/resnet50", freeze_bn=True),
    "bn_inception": bn_inception.Config(pretrained="weights/bn_inception", freeze_bn=True),
    "googlenet": googlenet.Config(pretrained="weights/googlenet", freeze_bn=True),
}


def recipe(dataset: str, variant: str, reported: Reported, *, classes: int, second_branch: float) -> ConfigDict:
    """CRT on a data set.

    Args:
      dataset, variant, reported: see `experiment`.
      classes: classes per batch, with 5 images each.
      second_branch: weight of the second branch's loss; that of the first is 1.
    """
    backbone, *others = without_protocol(variant).split("-")
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=BACKBONES.get(backbone, BACKBONES["mit_b2"]),
        method=crt.Config(lambda1=(1.0, second_branch)),
        train=Train(
            groups=dict.fromkeys(crt.GROUPS, Group(3e-5, weight_decay=5e-4)),
            epochs=40,
            schedule="step",
            milestones=(16, 32),
            gamma=0.1,
        ),
    )
    config.data.update(
        sampler="ms", batch_size=5 * classes, images_per_class=5,
        image_size=227, resize_first=True, crop_scale=(0.16, 1.0),
    )  # fmt: skip
    if "ms_printed" in variant:
        config.method.multi_similarity.update(beta=50.0, base=1.0)
    if "ms" in others:
        config.method.update(transform="average", lambda1=(1.0, 0.0), lambda2=0.0)
    if "branch2" in variant:
        config.method.tested_branch = "branch2"
    return config
