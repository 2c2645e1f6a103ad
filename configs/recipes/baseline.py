"""The baselines on ResNet-50, trained as in the literature: one variant per loss, normalised softmax by default.

Three losses are trained as their authors train them:

    normalized_softmax    Zhai & Wu, BMVC 2019; code azgo14/classification_metric_learning
    proxy_anchor          Kim, Kim, Cho, Kwak, CVPR 2020; code tjddus9597/Proxy-Anchor-CVPR2020
    proxy_nca_pp          Teh, DeVries, Taylor, ECCV 2020; code euwern/proxynca_pp

and so are `contrastive-memory`, `triplet-memory`, `multi_similarity-memory` (Wang et al., CVPR 2020; code
msight-tech/research-xbm). All others share one recipe made for comparing losses, with 128 dimensions and frozen batch
normalisation (Roth et al., ICML 2020; code Confusezius/Revisiting_Deep_Metric_Learning_PyTorch). In that recipe
`triplet` is mined semi-hard.

Not stated in the papers, and chosen here: the shared recipe on In-Shop, which is SOP's; `cross_entropy`, `cosface`,
`subcenter_arcface`, `sup_con`, `smooth_ap` and `recall_at_k`, which the shared recipe lacks (the first three use
ArcFace's settings; the authors of the last train on batches of about 400 to 4,000 images); Proxy-Anchor with ResNet-50
on SOP and In-Shop, where the authors give a command for BN-Inception only, used here; ProxyNCA++ on Cars196, whose file
is missing and which uses CUB's; the schedule of ProxyNCA++, whose code lowers the rate by results on held-out classes:
here it is constant, as it is with the memory.

Differences: for the contrastive loss the shared recipe samples pairs by distance, for lifted structure it compares all
positives with all negatives, and its hard triplet mining is soft; here these losses have the papers' own forms.
Gradients are not clipped. The memory's contrastive loss is on cosines with margin 0.5, here on distances with margin 1,
which is the same boundary. Zhai & Wu resize images to 256 x 256 without keeping the aspect ratio before cropping.
ProxyNCA++ uses Adam with an epsilon of 1, which for its small gradients is SGD with momentum at a tenth of the rate.
Where SGD trains proxies, the rate is multiplied by the ratio of our initial squared proxy length to theirs: only the
direction of a proxy matters, and longer proxies turn more slowly.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, without_protocol
from dml_jax.backbones import resnet
from dml_jax.config import Group, Train
from dml_jax.methods import baseline

CLASSES = {"cub": 100, "cars": 98, "sop": 11_318, "inshop": 3_997}  # in training
IMAGES = {"cub": 5_864, "cars": 8_054, "sop": 59_551, "inshop": 25_882}

make = partial(baseline.make_config, embedding_dim=128)
SHARED = {  # by variant: the method, and the learning rate of the loss's own parameters
    "cross_entropy": (make("cross_entropy"), 5e-4),
    "arcface": (make("arcface", {"margin": 0.5, "scale": 16.0}), 5e-4),
    "subcenter_arcface": (make("subcenter_arcface", {"margin": 0.5, "scale": 16.0}), 5e-4),
    "cosface": (make("cosface", {"margin": 0.35, "scale": 16.0}), 5e-4),
    "proxy_nca": (make("proxy_nca"), 5e-4),
    "soft_triple": (make("soft_triple", {"centers": 2, "scale": 8.0}), 1e-5),
    "contrastive": (make("contrastive"), 0.0),
    "triplet": (make("triplet"), 0.0),
    "triplet_random": (make("triplet", {"mining": "random"}), 0.0),
    "triplet_hard": (make("triplet", {"mining": "hard"}), 0.0),
    "triplet_distance_weighted": (make("triplet", {"mining": "distance_weighted"}), 0.0),
    "margin": (make("margin"), 5e-4),
    "n_pair": (make("n_pair", {"l2": 0.005}), 0.0),
    "lifted_structure": (make("lifted_structure"), 0.0),
    "multi_similarity": (make("multi_similarity"), 0.0),
    "sup_con": (make("sup_con"), 0.0),
    "smooth_ap": (make("smooth_ap"), 0.0),
    "recall_at_k": (make("recall_at_k"), 0.0),
}
MEMORIES = ("contrastive-memory", "triplet-memory", "multi_similarity-memory")
NAMES = ("normalized_softmax", "proxy_anchor", "proxy_nca_pp", *SHARED, *MEMORIES)

Recipe = tuple[baseline.Config, Train, dict[str, Any]]  # method, training, keys of `data`


def every(table: Reported) -> dict[str, tuple[float | None, ...]]:
    """A file's table completed with all variants; "" is normalised softmax."""
    assert set(table) <= set(NAMES)
    return {"": table["normalized_softmax"]} | {name: table.get(name, ()) for name in NAMES}


def recipe(dataset: str, variant: str, reported: Reported) -> ConfigDict:
    """A baseline on a data set, with CUB's settings if none are published; for the arguments see `experiment`."""
    known = dataset if dataset in CLASSES else "cub"
    loss = without_protocol(variant) or "normalized_softmax"
    special = {"normalized_softmax": _normalized_softmax, "proxy_anchor": _proxy_anchor, "proxy_nca_pp": _proxy_nca_pp}
    if loss in special:
        method, train, data = special[loss](known)
    elif loss in MEMORIES:
        method, train, data = _memory(known, loss)
    else:
        method, train, data = _shared(known, loss)
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=resnet.Config(pretrained="weights/resnet50", freeze_bn=data.pop("freeze_bn")),
        method=method,
        train=train,
    )
    config.data.update(data)
    config.method = baseline.as_values(method)
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
    return method, train, data


def _length_ratio(dataset: str, dim: int, squared_length: float) -> float:
    """Our initial squared proxy length, 2 D / C in expectation, divided by the authors'."""
    return 2 * dim / CLASSES[dataset] / squared_length


def _normalized_softmax(dataset: str) -> Recipe:
    rate = 1e-3 if dataset == "cub" else 1e-2
    images = 25 if dataset in ("cub", "cars") else 5
    method = baseline.make_config("normalized_softmax", layer_norm=True)
    train = Train(
        # The authors draw proxies from U(±1/sqrt(D)).
        groups=_groups(rate, 1e-4, rate * _length_ratio(dataset, 512, 1 / 3), freeze=True),
        epochs=30,
        warmup_epochs=1,
        optimizer="sgd",
        momentum=0.9,
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
        epochs=60 - warm,  # the 60 epochs include the warm-up
        warmup_epochs=warm,
        optimizer="adamw",
        schedule="step",
        milestones=tuple(epoch - warm for epoch in range(every_, 60, every_)),
        gamma=0.5 if small else 0.25,
    )
    data = {"sampler": "shuffled", "batch_size": 120 if small else 180, "image_size": 224, "freeze_bn": small}
    return baseline.make_config("proxy_anchor", pooling="avg+max"), train, data


def _proxy_nca_pp(dataset: str) -> Recipe:
    small = dataset in ("cub", "cars")
    rate, own = (4e-3, 4e2) if small else (2.4e-2, {"sop": 2.4e2, "inshop": 2.4e3}[dataset])
    train = Train(
        # The authors draw proxies from N(0, 1/64).
        groups=_groups(rate / 10, 0.0, own / 10 * _length_ratio(dataset, 512, 512 / 64), freeze=True),
        epochs=40 if small else 80,
        warmup_epochs=5,
        optimizer="sgd",
        momentum=0.9,
    )
    data = {
        "batch_size": 32 if small else 192, "images_per_class": 4 if small else 3, "image_size": 256, "resize": 288,
        "freeze_bn": False,
    }  # fmt: skip
    return baseline.make_config("proxy_nca_pp", pooling="max", layer_norm=True), train, data


def _memory(dataset: str, loss: str) -> Recipe:
    method, _ = SHARED[loss.removesuffix("-memory")]
    method = replace(method, memory=min(55_000, IMAGES[dataset]), memory_after=1000)
    train = Train(groups=_groups(1e-4, 5e-4, 0.0, freeze=False), steps=35_000, evaluate_every=1000)
    data = {
        "sampler": "ms", "batch_size": 64, "images_per_class": 4, "image_size": 224, "resize_first": True,
        "crop_scale": (0.2, 1.0), "freeze_bn": False,
    }  # fmt: skip
    return method, train, data
