"""Proxy-Anchor, multi-similarity and the losses of papers on ViT-S or ViT-B: the same training for
all, on the class token. A paper states its loss in `transformer.py` in its folder.

Variants: a loss and the weights to start from, `vit_small` (ImageNet-21k), `dino_vits16`,
`dinov2_vits14` or, of ViT-B, `dinov2_vitb14`. No paper reports these combinations with these
settings, which follow the public commands of HIER (Kim et al., CVPR 2023) where `values.csv` says
so. The losses have their authors' parameters.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs import base, papers
from dml_jax.backbones import vit
from dml_jax.config import Data, Group, Train
from dml_jax.methods import baseline

WEIGHTS = ("dinov2_vits14", "dino_vits16", "vit_small", "dinov2_vitb14")
LOSSES = ("proxy_anchor", "multi_similarity")
RATE, DECAY = 1e-5, 1e-2
FASTER, OWN = Group(10 * RATE, DECAY), Group(1000 * RATE, DECAY)  # OWN: of a loss's parameters


def on(dataset: str) -> base.Contents:
    """The contents of the file of a data set; its first variant is the main configuration."""
    losses = (*LOSSES, *papers.stating("transformer"))
    variants = {f"{loss}-{weights}": (loss, weights) for loss in losses for weights in WEIGHTS}
    return base.PAPER_PROTOCOL, variants, partial(recipe, dataset, variants)


def recipe(dataset: str, variants: Mapping[str, tuple[str, str]], variant: str = "") -> ConfigDict:
    """A loss on ViT-S or ViT-B."""
    loss, weights = variants[variant or next(iter(variants))]
    width = vit.PUBLISHED[weights].width
    groups = {"backbone": Group(RATE, DECAY, warmup="freeze"), "embedding": FASTER}
    method: Any
    if loss in LOSSES:
        method = baseline.make_config(loss, embedding_dim=width)
        groups |= {"loss": OWN}
    else:
        stated = papers.stating("transformer")[loss]
        method = stated.method(dataset, width)
        groups |= stated.GROUPS
    batches: dict[str, Any] = {"sampler": "balanced", "batch_size": 90, "images_per_class": 2}
    return base.experiment(
        f"{dataset}_vit",
        variant,
        data=Data(name=dataset, path=f"data/{dataset}", **batches, **base.CROPS),
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
