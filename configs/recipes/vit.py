"""HIST, Proxy-Anchor and multi-similarity on ViT-S or ViT-B: the same training for all, on the
class token.

Variants: a loss and the weights to start from, `vit_small` (ImageNet-21k), `dino_vits16`,
`dinov2_vits14` or, of ViT-B, `dinov2_vitb14`.

There are no expected results, since no paper reports these combinations with these settings. AdamW
with a rate of 1e-5 and a weight decay of 0.01, 50 epochs, and batches of 90 with 2 images per class
are taken from the public commands of HIER (Kim et al., CVPR 2023) for ViT-S on CUB and Cars196. We
chose as many dimensions as the class token has; ten times the rate for the embedding layer and a
thousand times for the parameters of the loss; a first epoch that trains only these two; and cosine
decay. The losses have their authors' parameters (HIST has those for ResNet-50).
"""

from dataclasses import replace
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs import base
from dml_jax.backbones import vit
from dml_jax.config import Data, Group, Train
from dml_jax.methods import baseline, hist

WEIGHTS = ("dinov2_vits14", "dino_vits16", "vit_small", "dinov2_vitb14")
LOSSES = ("proxy_anchor", "multi_similarity", "hist")
VARIANTS = {f"{loss}-{weights}": (loss, weights) for loss in LOSSES for weights in WEIGHTS}
RATE, DECAY = 1e-5, 1e-2


def on(dataset: str, *, tau: float, alpha: float) -> base.Contents:
    """The contents of the file of a data set; see `recipe`."""
    return base.PAPER_PROTOCOL, VARIANTS, partial(recipe, dataset, tau=tau, alpha=alpha)


def recipe(dataset: str, variant: str = "", *, tau: float, alpha: float) -> ConfigDict:
    """A loss on ViT-S.

    Args:
      dataset: "cub" or "cars".
      variant: one of VARIANTS; "" is the first.
      tau, alpha: of HIST on the data set.
    """
    loss, weights = VARIANTS[variant or next(iter(VARIANTS))]
    width = vit.PUBLISHED[weights].width
    groups = {"backbone": Group(RATE, DECAY, warmup="freeze"), "embedding": Group(10 * RATE, DECAY)}
    own = Group(1000 * RATE, DECAY)
    method: Any
    if loss == "hist":
        method = hist.Config(
            embedding_dim=width,
            hidden_dim=width,
            tau=tau,
            alpha=alpha,
            pooling="avg",
            drop_underflow=True,
        )
        groups |= {"distributions": own, "hgnn": Group(10 * RATE, DECAY)}
    else:
        method = baseline.make_config(loss, embedding_dim=width)
        groups |= {"loss": own}
    return base.experiment(
        f"{dataset}_vit",
        variant,
        data=Data(
            name=dataset,
            path=f"data/{dataset}",
            sampler="balanced",
            batch_size=90,
            images_per_class=2,
            crop="random_resized",
            image_size=224,
            resize=256,
            flip=0.5,
        ),
        backbone=replace(vit.PUBLISHED[weights], pretrained=f"weights/{weights}"),
        method=method,
        train=Train(
            groups=groups,
            epochs=49,
            warmup_epochs=1,
            optimizer="adamw",
            schedule="cosine",
            checkpoint_every=1000,
        ),
        evaluation=base.EVALUATION[dataset],
    )
