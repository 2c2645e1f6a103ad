"""Shared by the configurations of HIST except `cars_hist.py`, which is self-contained.

The settings follow the authors' command (github.com/ljin0429/HIST); with BN-Inception, they
published only tau, alpha and lambda_s, and the other settings are the reproduction's (Yuan et al.,
MLRC 2022).
"""

from collections.abc import Mapping
from typing import Any

from configs import base, cars_hist
from dml_jax.backbones import bn_inception, resnet
from dml_jax.config import Data, Group, Train
from dml_jax.methods import hist

BN_INCEPTION = bn_inception.Config(pretrained="weights/bn_inception", bn_momentum=0.9)


def groups(rate: float, decay: float, distributions: float, hgnn: float) -> dict[str, Group]:
    """Parameter groups with the learning rates of the network, of the distributions and of the
    hypergraph network."""
    return {
        "backbone": Group(rate, decay, warmup="freeze"),
        "embedding": Group(rate, decay),
        "distributions": Group(distributions, decay),
        "hgnn": Group(hgnn, decay),
    }


# With thousands of classes: In-Shop, for which nothing is published, uses SOP's.
SOP: dict[str, Any] = {
    "tau": 16.0,
    "alpha": 2.0,
    "groups": groups(1e-4, 1e-4, 1e-2, 1e-3),
    "epochs": 60,
    "every": 10,
}


def on(
    dataset: str,
    variants: base.Variants,
    protocol: Mapping[str, Any] = cars_hist.PAPER_PROTOCOL,
    *,
    tau: float,
    alpha: float,
    groups: dict[str, Group],
    epochs: int,
    every: int,
    freeze_bn: bool = False,
) -> base.Contents:
    """HIST on a data set; the learning rates are halved every `every` epochs."""
    return base.contents(
        f"{dataset}_hist",
        protocol,
        variants,
        data=Data(
            name=dataset,
            path=f"data/{dataset}",
            sampler="shuffled",
            batch_size=32,
            crop="random_resized",
            image_size=224,
            resize=256,
            flip=0.5,
        ),
        # Scales and shifts are trained.
        backbone=resnet.Config(pretrained="weights/resnet50", freeze_bn=freeze_bn),
        method=hist.Config(
            tau=tau,
            alpha=alpha,
            lambda_s=1.0,
            embedding_dim=512,
            hidden_dim=512,
            drop_underflow=True,
        ),
        train=Train(
            groups=groups,
            optimizer="adam",
            warmup_epochs=1,  # before the others
            epochs=epochs,
            schedule="step",
            period=every,
            gamma=0.5,
            checkpoint_every=1000,
        ),
        evaluation=base.EVALUATION[dataset],
    )
