"""The baselines on ResNet-50, trained as in the literature: one function per way of training.

    normalized_softmax    Zhai & Wu, BMVC 2019; code azgo14/classification_metric_learning
    proxy_anchor          Kim, Kim, Cho, Kwak, CVPR 2020; code tjddus9597/Proxy-Anchor-CVPR2020
    proxy_nca_pp          Teh, DeVries, Taylor, ECCV 2020; code euwern/proxynca_pp
    LOSS-memory           Wang et al., CVPR 2020; code msight-tech/research-xbm
    all others            the recipe for comparing losses of Roth et al., ICML 2020; code
                          Confusezius/Revisiting_Deep_Metric_Learning_PyTorch

`values.csv` states for each value whether it is the authors'. In particular, losses that Roth et
al. did not train use the settings of similar ones, In-Shop uses their recipe for SOP, and margin
and multi-similarity were published with other recipes.
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
PAIRS = ("lifted_structure", "multi_similarity", "sup_con", "smooth_ap", "recall_at_k")
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
    **{loss: (make(loss), 0.0) for loss in PAIRS},
}
MEMORIES = {f"{loss}-memory": loss for loss in ("contrastive", "triplet", "multi_similarity")}
# Sides of crop and image, in pixels.
PROXY_NCA_PP = {"proxy_nca_pp": (256, 288), "proxy_nca_pp-227": (227, 256)}
VARIANTS = ("normalized_softmax", "proxy_anchor", *PROXY_NCA_PP, *SHARED, *MEMORIES)


IMAGES = {"cub": 5_864, "cars": 8_054, "sop": 59_551, "inshop": 25_882}  # in training
SHARED_EPOCHS = {"cub": 150, "cars": 150, "sop": 100, "inshop": 100}
# Learning rate of the network, and images per class in a batch of 75.
SOFTMAX = {"cub": (1e-3, 25), "cars": (1e-2, 25), "sop": (1e-2, 5), "inshop": (1e-2, 5)}
# Rate of the network (the proxies' is 100 times as large); epochs of warm-up, which trains all but
# the backbone; epochs, including warm-up, between multiplications of the rates by gamma; gamma;
# images in a batch; whether batch normalisation is frozen.
ANCHOR = {
    "cub": (1e-4, 5, 5, 0.5, 120, True), "cars": (1e-4, 5, 10, 0.5, 120, True),
    "sop": (6e-4, 1, 20, 0.25, 180, False), "inshop": (6e-4, 1, 20, 0.25, 180, False),
}  # fmt: skip
# Learning rates of the network and of the proxies, for the authors' epsilon of 1; epochs after 5 of
# warm-up; images in a batch and per class.
NCA_PP = {
    "cub": (4e-3, 4e2, 40, 32, 4), "cars": (4e-3, 4e2, 40, 32, 4),
    "sop": (2.4e-2, 2.4e2, 80, 192, 3), "inshop": (2.4e-2, 2.4e3, 80, 192, 3),
}  # fmt: skip


def on(dataset: str, more: base.Variants | None = None) -> base.Contents:
    """The contents of the file of a data set.

    Args:
      more: further variants, "VARIANT-SUFFIX", and their overrides of VARIANT.
    """
    found: base.Variants = {name: {} for name in VARIANTS} | dict(more or {})
    return base.PAPER_PROTOCOL, found, partial(config, dataset, found)


def config(dataset: str, variants: base.Variants, variant: str = "") -> ConfigDict:
    """A baseline on a data set."""
    name = variant if variant in VARIANTS else variant.partition("-")[0]
    match name:
        case "" | "normalized_softmax":
            sections = normalized_softmax(dataset)
        case "proxy_anchor":
            sections = proxy_anchor(dataset)
        case "proxy_nca_pp" | "proxy_nca_pp-227":
            sections = proxy_nca_pp(dataset, *PROXY_NCA_PP[name])
        case _ if name in MEMORIES:
            sections = memory(dataset, MEMORIES[name])
        case _:
            sections = shared(dataset, name)
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


def proxy_anchor(dataset: str) -> dict[str, Any]:
    """Proxy-Anchor as its authors train it, for 60 epochs that include the warm-up."""
    rate, warmup, every, gamma, batch_size, freeze_bn = ANCHOR[dataset]
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
    options: dict[str, Any] = {"embedding_dim": 2048, "pooling": "max", "layer_norm": True}
    return _sections(
        dataset,
        baseline.make_config("proxy_nca_pp", {"init": "eighth"}, **options),
        Train(
            groups=_groups(rate / 10, 0.0, proxies / 10, warmup="freeze"),
            epochs=epochs,
            warmup_epochs=5,
            optimizer="sgd",
            momentum=0.9,
        ),
        batch_size=batch_size, images_per_class=images_per_class,
        image_size=image_size, resize=resize,
    )  # fmt: skip


def shared(dataset: str, loss: str) -> dict[str, Any]:
    """One of SHARED, by the recipe for comparing losses."""
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
    size = min(55_000, IMAGES[dataset])
    return _sections(
        dataset,
        replace(method, init="he", pooling="max", memory=size, memory_after=1000),
        Train(groups=_groups(1e-4, 5e-4, 0.0), steps=35_000, evaluate_every=1000),
        sampler="distinct_chunks", batch_size=64, images_per_class=4,
        resize_first=True, crop_scale=(0.2, 1.0),
    )  # fmt: skip


def _sections(
    dataset: str, method: Any, train: Train, *, freeze_bn: bool = False, **data: Any
) -> dict[str, Any]:
    """Arguments of `experiment`."""
    return {
        "data": Data(name=dataset, path=f"data/{dataset}", **{**base.CROPS, **data}),
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
