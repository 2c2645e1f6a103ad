"""Shared by the configurations of CRT: the networks and the protocol.

The settings follow section 4.1 of the paper, with documented choices where it is silent; no code is
public.

The paper states the image size, the batch, ImageNet weights, the initial learning rate 3e-5, the
weights of the losses, 128 and 1024 dimensions, and 64 shared prototypes. Other settings are taken
from the code of the multi-similarity loss and of the first author's earlier work
(github.com/kanshichao/CBML): Adam with weight decay 5e-4, images resized to 256 before cropping 16
% or more of the area, and frozen batch norm. Three are stated nowhere: the stochastic depth of MiT,
for which the rate of its authors' code is used (`drop_path=0.1`); the width of the hidden layers of
Gamma, 512; and the length. On CUB, 40 epochs with the learning rate divided by 10 after 16 and 32
are close to the multi-similarity loss's code, 3,000 steps with decays after 1,200 and 2,400. The
ablations are studies, `configs/crt/studies.py`.
"""

from dataclasses import replace
from typing import Any

from configs import base
from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.config import Data, Group, Train
from dml_jax.methods import crt

MIT_B2 = replace(mit.PUBLISHED["mit_b2"], pretrained="weights/mit_b2", drop_path=0.1)
VARIANTS: dict[str, dict[str, Any]] = {
    # The multi-similarity loss with the values printed in its paper, not 40 and 0.5 as in its code;
    # the paper of CRT does not say which it uses.
    "ms_printed": {"method.multi_similarity.beta": 50.0, "method.multi_similarity.base": 1.0},
    # Table 5
    "mit_b1": {"backbone": mit.Config(pretrained="weights/mit_b1", drop_path=0.1)},
    "deit": {"backbone": deit.Config(pretrained="weights/deit_small")},
    "resnet50": {"backbone": resnet.Config(pretrained="weights/resnet50", freeze_bn=True)},
    "bn_inception": {
        "backbone": bn_inception.Config(pretrained="weights/bn_inception", freeze_bn=True)
    },
    "googlenet": {"backbone": googlenet.Config(pretrained="weights/googlenet", freeze_bn=True)},
}


def on(
    dataset: str,
    variants: base.Variants = VARIANTS,
    *,
    batch_size: int,
    lambda1: tuple[float, float],
) -> base.Contents:
    """CRT on a data set; the paper does not say how it selected the epoch, so the protocol follows
    comparable code."""
    return base.contents(
        f"{dataset}_crt",
        base.PAPER_PROTOCOL,
        variants,
        data=Data(
            name=dataset,
            path=f"data/{dataset}",
            sampler="distinct_chunks",
            batch_size=batch_size,
            images_per_class=5,
            flip=0.5,
            resize=256,
            resize_first=True,
            crop="random_resized",
            crop_scale=(0.16, 1.0),
            image_size=227,
        ),
        backbone=MIT_B2,
        method=crt.Config(
            embedding_dims=(128, 1024), prototypes=(64, 64), lambda1=lambda1, lambda2=0.9
        ),
        train=Train(
            groups=dict.fromkeys(crt.GROUPS, Group(3e-5, weight_decay=5e-4)),
            optimizer="adam",
            epochs=40,
            schedule="step",
            milestones=(16, 32),
            gamma=0.1,
            checkpoint_every=1000,
        ),
        evaluation=base.EVALUATION[dataset],
    )
