"""The baselines as their literature trains them, all on ResNet-50: a loss a variant, normalised softmax by default.

Three losses are trained as their own authors train them:

    normalized_softmax    Zhai & Wu, BMVC 2019; code azgo14/classification_metric_learning
    proxy_anchor          Kim, Kim, Cho, Kwak, CVPR 2020; code tjddus9597/Proxy-Anchor-CVPR2020
    proxy_nca_pp          Teh, DeVries, Taylor, ECCV 2020; code euwern/proxynca_pp

and `contrastive-memory`, `triplet-memory`, `multi_similarity-memory` as the memory's are (Wang et al., CVPR 2020; code
msight-tech/research-xbm). All others share one recipe, 128 dimensions and frozen batch norm, made for comparing them
(Roth et al., ICML 2020; code Confusezius/Revisiting_Deep_Metric_Learning_PyTorch); `triplet` is semi-hard there.

What was not stated and is a choice: In-Shop in the shared recipe, which is then SOP's; `cross_entropy` and `cosface`,
which it lacks and which are trained as ArcFace is there; Proxy-Anchor on a ResNet-50 for SOP and In-Shop, for which
its authors give only BN-Inception's command, taken here; ProxyNCA++ on Cars196, whose file is missing and which is
CUB's; when its rate falls, which its code finds on held-out classes: it stays constant, and so does the memory's.

What differs: the shared recipe draws pairs for the contrastive loss by distance, sets all positives of lifted structure
against all negatives, and mines hard triplets softly; here these are the papers' own forms. Gradients are not clipped.
The memory's contrastive loss is on cosines with margin 0.5, here on distances with margin 1, the same boundary.
Zhai & Wu squash the images to 256 x 256 before cropping, and their SGD is without Nesterov's step. ProxyNCA++ trains by
Adam with an epsilon of 1, which for its small gradients is SGD with momentum at a tenth of the rate. Where SGD trains
proxies, the rate is multiplied by the squared length of ours over theirs at the start, for only their direction counts,
and the longer they are the slower they turn.
"""

from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, plain
from dml_jax.backbones import resnet
from dml_jax.config import Group, Train
from dml_jax.methods import baseline
from dml_jax.methods.baseline import options

CLASSES = {"cub": 100, "cars": 98, "sop": 11_318, "inshop": 3_997}  # in training
IMAGES = {"cub": 5_864, "cars": 8_054, "sop": 59_551, "inshop": 25_882}

SHARED = {  # by variant: the loss, and the learning rate of its own parameters
    "cross_entropy": (baseline.Config(loss="cross_entropy"), 5e-4),
    "arcface": (baseline.Config(loss="arcface", arcface=options.ArcFace(margin=0.5, scale=16.0)), 5e-4),
    "cosface": (baseline.Config(loss="cosface", cosface=options.CosFace(margin=0.35, scale=16.0)), 5e-4),
    "proxy_nca": (baseline.Config(loss="proxy_nca"), 5e-4),
    "soft_triple": (baseline.Config(loss="soft_triple", soft_triple=options.SoftTriple(centers=2, scale=8.0)), 1e-5),
    "contrastive": (baseline.Config(loss="contrastive"), 0.0),
    "triplet": (baseline.Config(loss="triplet"), 0.0),
    "triplet_random": (baseline.Config(loss="triplet", triplet=options.Triplet(mining="random")), 0.0),
    "triplet_hard": (baseline.Config(loss="triplet", triplet=options.Triplet(mining="hard")), 0.0),
    "triplet_distance_weighted": (
        baseline.Config(loss="triplet", triplet=options.Triplet(mining="distance_weighted")),
        0.0,
    ),
    "margin": (baseline.Config(loss="margin"), 5e-4),
    "n_pair": (baseline.Config(loss="n_pair", n_pair=options.NPair(l2=0.005)), 0.0),
    "lifted_structure": (baseline.Config(loss="lifted_structure"), 0.0),
    "multi_similarity": (baseline.Config(loss="multi_similarity"), 0.0),
}
MEMORIES = ("contrastive-memory", "triplet-memory", "multi_similarity-memory")
NAMES = ("normalized_softmax", "proxy_anchor", "proxy_nca_pp", *SHARED, *MEMORIES)

Recipe = tuple[baseline.Config, Train, dict[str, Any]]  # with the keys of `data`


def every(table: Reported) -> dict[str, tuple[float | None, ...]]:
    """A file's table with all variants in it, "" being normalised softmax."""
    assert set(table) <= set(NAMES)
    return {"": table["normalized_softmax"]} | {name: table.get(name, ()) for name in NAMES}


def recipe(dataset: str, variant: str, reported: Reported) -> ConfigDict:
    """A baseline on a data set; see `experiment`."""
    loss = plain(variant) or "normalized_softmax"
    special = {"normalized_softmax": _normalized_softmax, "proxy_anchor": _proxy_anchor, "proxy_nca_pp": _proxy_nca_pp}
    if loss in special:
        method, train, data = special[loss](dataset)
    elif loss in MEMORIES:
        method, train, data = _memory(dataset, loss)
    else:
        method, train, data = _shared(dataset, loss)
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=resnet.Config(pretrained="weights/resnet50", freeze_bn=data.pop("freeze_bn")),
        method=method,
        train=train,
    )
    config.data.update(data)
    return config


def _groups(rate: float, decay: float, own: float, *, own_decay: float | None = None, freeze: bool) -> dict[str, Group]:
    return {
        "backbone": Group(rate, decay, warmup="freeze" if freeze else "train"),
        "embedding": Group(rate, decay),
        "loss": Group(own, decay if own_decay is None else own_decay),
    }


def _shared(dataset: str, loss: str) -> Recipe:
    method, own = SHARED[loss]
    train = Train(
        groups=_groups(1e-5, 4e-4, own, own_decay=0.0, freeze=False),
        epochs=150 if dataset in ("cub", "cars") else 100,
    )
    data = {"sampler": "diva", "batch_size": 112, "images_per_class": 2, "image_size": 224, "freeze_bn": True}
    return replace(method, embedding_dim=128), train, data


def _turning(dataset: str, dim: int, squared_length: float) -> float:
    """Squared length of a proxy at the start here, D times N(0, 2 / C), over the authors'."""
    return 2 * dim / CLASSES[dataset] / squared_length


def _normalized_softmax(dataset: str) -> Recipe:
    rate = 1e-3 if dataset == "cub" else 1e-2
    images = 25 if dataset in ("cub", "cars") else 5
    method = baseline.Config(loss="normalized_softmax", layer_norm=True)
    train = Train(
        groups=_groups(rate, 1e-4, rate * _turning(dataset, 512, 1 / 3), freeze=True),  # theirs: U(±1/sqrt(D))
        epochs=30,
        warmup_epochs=1,
        optimizer="sgd",
        schedule="step",
        milestones=(15,),
        gamma=0.1,
    )
    data = {"crop": "random", "batch_size": 75, "images_per_class": images, "image_size": 224, "freeze_bn": False}
    return method, train, data


def _proxy_anchor(dataset: str) -> Recipe:
    small = dataset in ("cub", "cars")
    rate, warm, every_ = (1e-4, 5, {"cub": 5, "cars": 10}[dataset]) if small else (6e-4, 1, 20)
    train = Train(
        groups=_groups(rate, 1e-4, 100 * rate, freeze=True),
        epochs=60 - warm,  # the warm-up is among the 60
        warmup_epochs=warm,
        optimizer="adamw",
        schedule="step",
        milestones=tuple(epoch - warm for epoch in range(every_, 60, every_)),
        gamma=0.5 if small else 0.25,
    )
    data = {"sampler": "shuffled", "batch_size": 120 if small else 180, "image_size": 224, "freeze_bn": small}
    return baseline.Config(loss="proxy_anchor", pooling="avg+max"), train, data


def _proxy_nca_pp(dataset: str) -> Recipe:
    small = dataset in ("cub", "cars")
    rate, own = (4e-3, 4e2) if small else (2.4e-2, {"sop": 2.4e2, "inshop": 2.4e3}[dataset])
    train = Train(
        groups=_groups(rate / 10, 0.0, own / 10 * _turning(dataset, 512, 512 / 64), freeze=True),  # theirs: N(0, 1/64)
        epochs=40 if small else 80,
        warmup_epochs=5,
        optimizer="sgd",
    )
    data = {
        "batch_size": 32 if small else 192, "images_per_class": 4 if small else 3, "image_size": 256, "resize": 288,
        "freeze_bn": False,
    }  # fmt: skip
    return baseline.Config(loss="proxy_nca_pp", pooling="max", layer_norm=True), train, data


def _memory(dataset: str, loss: str) -> Recipe:
    method, _ = SHARED[loss.removesuffix("-memory")]
    method = replace(method, embedding_dim=128, memory=min(55_000, IMAGES[dataset]), memory_after=1000)
    train = Train(groups=_groups(1e-4, 5e-4, 0.0, freeze=False), steps=35_000, evaluate_every=1000)
    data = {
        "sampler": "ms", "batch_size": 64, "images_per_class": 4, "image_size": 224, "resize_first": True,
        "crop_scale": (0.2, 1.0), "freeze_bn": False,
    }  # fmt: skip
    return method, train, data
