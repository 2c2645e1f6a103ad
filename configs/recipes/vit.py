"""HIST, Proxy-Anchor and multi-similarity on ViT-S: the same training for all three, on the class token.

Variants: a loss, `hist`, `proxy_anchor` or `multi_similarity`, and the weights to start from, joined by a hyphen:
`vit_small` (ImageNet-21k), `dino_vits16`, `dinov2_vits14`; each with the suffix `paper` under the authors' protocol.

There are no expected results: no paper has these combinations with these settings. AdamW with a rate of 1e-5 and a
weight decay of 0.01, 50 epochs and batches of 90 with 2 images of a class are those of the public commands of HIER (Kim
et al., CVPR 2023) for ViT-S on CUB and Cars196. Chosen here: 384 dimensions, as many as the class token has; ten times
the rate for the embedding layer and a thousand times for the parameters of the loss; a first epoch that trains these
two only; cosine decay. The parameters of the losses are those of their authors, HIST's those for ResNet-50.
"""

from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, variants, without_protocol
from dml_jax.backbones import vit
from dml_jax.config import Group, Train
from dml_jax.methods import baseline, hist

WEIGHTS = ("dinov2_vits14", "dino_vits16", "vit_small")
LOSSES = ("proxy_anchor", "multi_similarity", "hist")
REPORTED: Reported = {"": ()} | {f"{loss}-{weights}": () for loss in LOSSES for weights in WEIGHTS}
VARIANTS = variants(REPORTED)
RATE, DECAY, DIMENSIONS = 1e-5, 1e-2, 384


def recipe(dataset: str, variant: str, *, tau: float, alpha: float) -> ConfigDict:
    """A loss on ViT-S.

    Args:
      dataset, variant: see `experiment`; without a loss and weights, the first of both.
      tau, alpha: of HIST on the data set.
    """
    loss, _, weights = (without_protocol(variant) or f"{LOSSES[0]}-{WEIGHTS[0]}").partition("-")
    groups = {"backbone": Group(RATE, DECAY, warmup="freeze"), "embedding": Group(10 * RATE, DECAY)}
    own = Group(1000 * RATE, DECAY)
    method: Any
    if loss == "hist":
        method = hist.Config(
            embedding_dim=DIMENSIONS, hidden_dim=DIMENSIONS, tau=tau, alpha=alpha, pooling="avg", drop_underflow=True
        )
        groups |= {"distributions": own, "hgnn": Group(10 * RATE, DECAY)}
    else:
        method = baseline.make_config(loss, embedding_dim=DIMENSIONS)
        groups |= {"loss": own}
    config = experiment(
        dataset,
        variant,
        REPORTED,
        backbone=replace(vit.PUBLISHED[weights], pretrained=f"weights/{weights}"),
        method=method,
        train=Train(groups=groups, epochs=49, warmup_epochs=1, optimizer="adamw", schedule="cosine"),
    )
    config.name = "-".join(filter(None, (f"{dataset}_vit", variant)))
    if loss != "hist":
        config.method = baseline.as_values(method)
    config.data.update(sampler="balanced", batch_size=90, images_per_class=2, image_size=224)
    return config
