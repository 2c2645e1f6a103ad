"""The baselines on ResNet-50, trained as in the literature: one function per way of training.

Three losses are trained as their authors train them, from their initial values:

    normalized_softmax    Zhai & Wu, BMVC 2019; code azgo14/classification_metric_learning
    proxy_anchor          Kim, Kim, Cho, Kwak, CVPR 2020; code tjddus9597/Proxy-Anchor-CVPR2020
    proxy_nca_pp          Teh, DeVries, Taylor, ECCV 2020; code euwern/proxynca_pp

So are `contrastive-memory`, `triplet-memory`, `multi_similarity-memory` (Wang et al., CVPR 2020;
code msight-tech/research-xbm). All others share one recipe designed to compare losses, with 128
dimensions and frozen batch normalisation (Roth et al., ICML 2020; code
Confusezius/Revisiting_Deep_Metric_Learning_PyTorch). In that recipe, `triplet` uses semi-hard
mining.

The papers do not state everything, and no results are published for a fixed schedule; margin and
multi-similarity were published with other recipes. On In-Shop, the shared recipe is SOP's. It lacks
`cross_entropy`, `cosface`, `subcenter_arcface`, `sup_con`, `smooth_ap` and `recall_at_k`; the first
three use ArcFace's settings here (the authors of the last train on batches of about 400 to 4,000
images, and with a temperature of 1 for every K). For Proxy-Anchor with ResNet-50 on SOP and
In-Shop, the authors' command for BN-Inception is used, the only one they give. The code of
ProxyNCA++ lowers the rate, and ends, by results on held-out classes; here the rate and the length
are constant. The rate is constant with the memory, too.

There are differences. The shared recipe samples pairs by distance for the contrastive loss,
compares all positives with all negatives for lifted structure, without normalising them but with a
penalty on their length, and uses soft mining of hard triplets; here, the first and the last have
the forms of their own papers, and lifted structure that of its paper on unit embeddings. For
SoftTriple, it weights classes instead of the centres of a class. Gradients are not clipped. Zhai &
Wu exclude a query by its index and ProxyNCA++ is not selected on the test classes, which
`--protocol=paper` does for all.

With the memory, the losses have the forms of this package: the contrastive loss is the mean over
active pairs of a distance with margin 1, instead of a sum over pairs of cosines above 0.5 (the same
boundary) divided by the number of images; the triplet loss is on semi-hard triplets, instead of all
pairs near the hardest one without a hinge. Its authors' ResNet-50 has no ReLU before the max
pooling of the stem, they divide the rate when results stop rising, and they report the model with
the best MAP@R.

Zhai & Wu resize images to 256 x 256 before cropping, without keeping the aspect ratio. ProxyNCA++
uses Adam with an epsilon of 1, which for its small gradients is SGD with momentum at a tenth of the
rate; its batches draw classes again each time, while here an epoch shows all equally often. Both
start a new optimizer after the warm-up, here the momentum stays.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs import base
from dml_jax.backbones import resnet
from dml_jax.config import Data, Group, Train
from dml_jax.methods import baseline

make = partial(baseline.make_config, embedding_dim=128)
ARCFACE = {"margin": 0.5, "scale": 16.0, "init": "dimensions"}
SHARED = {  # by variant: the method, and the learning rate of the loss's own parameters
    "cross_entropy": (make("cross_entropy"), 5e-4),
    "arcface": (make("arcface", ARCFACE), 5e-4),
    "subcenter_arcface": (make("subcenter_arcface", ARCFACE), 5e-4),
    "cosface": (make("cosface", {**ARCFACE, "margin": 0.35}), 5e-4),
    "proxy_nca": (make("proxy_nca", {"init": "eighth"}), 5e-4),
    "soft_triple": (make("soft_triple", {"centers": 2, "scale": 8.0, "init": "count"}), 1e-5),
    "contrastive": (make("contrastive"), 0.0),
    "triplet": (make("triplet"), 0.0),
    "triplet_random": (make("triplet", {"mining": "random"}), 0.0),
    "triplet_hard": (make("triplet", {"mining": "hard"}), 0.0),
    "triplet_distance_weighted": (make("triplet", {"mining": "distance_weighted"}), 0.0),
    "margin": (make("margin"), 5e-4),
    "n_pair": (make("n_pair", {"l2": 0.005, "squared": False}), 0.0),
    "lifted_structure": (make("lifted_structure"), 0.0),
    "multi_similarity": (make("multi_similarity"), 0.0),
    "sup_con": (make("sup_con"), 0.0),
    "smooth_ap": (make("smooth_ap"), 0.0),
    "recall_at_k": (make("recall_at_k"), 0.0),
}
MEMORIES = {f"{loss}-memory": loss for loss in ("contrastive", "triplet", "multi_similarity")}
PROXY_NCA_PP = {
    "proxy_nca_pp": (256, 288),
    "proxy_nca_pp-227": (227, 256),
}  # sides of crop and image, in pixels
VARIANTS = ("normalized_softmax", "proxy_anchor", *PROXY_NCA_PP, *SHARED, *MEMORIES)


IMAGES = {"cub": 5_864, "cars": 8_054, "sop": 59_551, "inshop": 25_882}  # in training
SHARED_EPOCHS = {"cub": 150, "cars": 150, "sop": 100, "inshop": 100}
# Learning rate of the network, and images per class in a batch of 75.
SOFTMAX = {"cub": (1e-3, 25), "cars": (1e-2, 25), "sop": (1e-2, 5), "inshop": (1e-2, 5)}
MANY_ANCHORS = {
    "rate": 6e-4,
    "warmup": 1,
    "every": 20,
    "gamma": 0.25,
    "batch_size": 180,
    "freeze_bn": False,
}
ANCHOR: dict[str, dict[str, Any]] = {  # arguments of `proxy_anchor`
    "cub": {
        "rate": 1e-4,
        "warmup": 5,
        "every": 5,
        "gamma": 0.5,
        "batch_size": 120,
        "freeze_bn": True,
    },
    "cars": {
        "rate": 1e-4,
        "warmup": 5,
        "every": 10,
        "gamma": 0.5,
        "batch_size": 120,
        "freeze_bn": True,
    },
    "sop": MANY_ANCHORS,
    "inshop": MANY_ANCHORS,
}
# Learning rates of the network and of the proxies, for the authors' epsilon of 1; epochs after 5 of
# warm-up; images in a batch and per class.
NCA_PP = {
    "cub": (4e-3, 4e2, 40, 32, 4), "cars": (4e-3, 4e2, 40, 32, 4),
    "sop": (2.4e-2, 2.4e2, 80, 192, 3), "inshop": (2.4e-2, 2.4e3, 80, 192, 3),
}  # fmt: skip


def on(dataset: str) -> base.Contents:
    """The contents of the file of a data set; see `config`."""
    return base.PAPER_PROTOCOL, VARIANTS, partial(config, dataset)


def config(dataset: str, variant: str = "", variants: base.Variants | None = None) -> ConfigDict:
    """A baseline on a data set.

    Args:
      variant: one of VARIANTS, "" for the first, or one of `variants`.
      variants: overrides of the variant whose name a name begins with, before "-".
    """
    found = variant.partition("-")[0] if variant in (variants or {}) else variant
    match found:
        case "" | "normalized_softmax":
            sections = normalized_softmax(dataset)
        case "proxy_anchor":
            sections = proxy_anchor(dataset, **ANCHOR[dataset])
        case "proxy_nca_pp" | "proxy_nca_pp-227":
            sections = proxy_nca_pp(dataset, *PROXY_NCA_PP[found])
        case _ if found in MEMORIES:
            sections = memory(dataset, MEMORIES[found])
        case _:
            sections = shared(dataset, found)
    evaluation = base.EVALUATION[dataset]
    return base.experiment(
        f"{dataset}_baseline", variant, variants, **sections, evaluation=evaluation
    )


def normalized_softmax(dataset: str) -> dict[str, Any]:
    """Normalised softmax as Zhai & Wu train it."""
    rate, images_per_class = SOFTMAX[dataset]
    options = {"init": "dimensions"}
    return _sections(
        dataset,
        baseline.make_config("normalized_softmax", options, layer_norm=True, bias=False),
        Train(
            groups=_groups(rate, 1e-4, rate, warmup="freeze"),
            epochs=30,
            warmup_epochs=1,
            optimizer="sgd",
            momentum=0.9,
            schedule="step",
            milestones=(15,),
            gamma=0.1,
        ),
        crop="random",
        sampler="distinct_classes", batch_size=75, images_per_class=images_per_class,
    )  # fmt: skip


def proxy_anchor(
    dataset: str,
    *,
    rate: float,
    warmup: int,
    every: int,
    gamma: float,
    batch_size: int,
    freeze_bn: bool,
) -> dict[str, Any]:
    """Proxy-Anchor as its authors train it, for 60 epochs that include the warm-up.

    Args:
      rate: of the network; the proxies have 100 times as much.
      warmup: epochs that train all but the backbone.
      every: epochs, warm-up included, between two multiplications of the rates by `gamma`.
    """
    return _sections(
        dataset,
        baseline.make_config("proxy_anchor", pooling="avg+max", init="he"),
        Train(
            groups=_groups(rate, 1e-4, 100 * rate, warmup="freeze"),
            epochs=60 - warmup,
            warmup_epochs=warmup,
            optimizer="adamw",
            schedule="step",
            milestones=tuple(epoch - warmup for epoch in range(every, 60, every)),
            gamma=gamma,
        ),
        freeze_bn=freeze_bn,
        sampler="shuffled", batch_size=batch_size,
    )  # fmt: skip


def proxy_nca_pp(dataset: str, image_size: int, resize: int) -> dict[str, Any]:
    """ProxyNCA++ as its authors train it; 227 pixels as in MPN's Table 6."""
    rate, proxies, epochs, batch_size, images_per_class = NCA_PP[dataset]
    options = {"init": "eighth"}
    return _sections(
        dataset,
        baseline.make_config(
            "proxy_nca_pp", options, embedding_dim=2048, pooling="max", layer_norm=True
        ),
        Train(
            groups=_groups(rate / 10, 0.0, proxies / 10, warmup="freeze"),
            epochs=epochs,
            warmup_epochs=5,
            optimizer="sgd",
            momentum=0.9,
        ),
        batch_size=batch_size,
        images_per_class=images_per_class,
        image_size=image_size,
        resize=resize,
    )


def shared(dataset: str, loss: str) -> dict[str, Any]:
    """One of SHARED by the recipe made for comparing losses."""
    method, own = SHARED[loss]
    return _sections(
        dataset,
        method,
        Train(groups=_groups(1e-5, 4e-4, own, own_decay=0.0), epochs=SHARED_EPOCHS[dataset]),
        freeze_bn=True,
        sampler="with_replacement", batch_size=112, images_per_class=2,
    )  # fmt: skip


def memory(dataset: str, loss: str) -> dict[str, Any]:
    """A pair loss with a memory of at most the number of training images."""
    method, _ = SHARED[loss]
    return _sections(
        dataset,
        replace(
            method,
            init="he",
            pooling="max",
            memory=min(55_000, IMAGES[dataset]),
            memory_after=1000,
        ),
        Train(groups=_groups(1e-4, 5e-4, 0.0), steps=35_000, evaluate_every=1000),
        sampler="distinct_chunks", batch_size=64, images_per_class=4,
        resize_first=True, crop_scale=(0.2, 1.0),
    )  # fmt: skip


def _sections(
    dataset: str, method: Any, train: Train, *, freeze_bn: bool = False, **data: Any
) -> dict[str, Any]:
    """Arguments of `experiment`."""
    common: dict[str, Any] = {
        "crop": "random_resized",
        "image_size": 224,
        "resize": 256,
        "flip": 0.5,
    }
    return {
        "data": Data(name=dataset, path=f"data/{dataset}", **{**common, **data}),
        "backbone": resnet.Config(pretrained="weights/resnet50", freeze_bn=freeze_bn),
        "method": method,
        "train": replace(train, checkpoint_every=1000),
    }


def _groups(
    rate: float, decay: float, own: float, *, own_decay: float | None = None, warmup: Any = "train"
) -> dict[str, Group]:
    return {
        "backbone": Group(rate, decay, warmup=warmup),
        "embedding": Group(rate, decay),
        "loss": Group(own, decay if own_decay is None else own_decay),
    }
