"""Published configurations have the values of the papers and of the authors' code."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dml_jax.config import flatten
from dml_jax.studies import plan
from dml_jax.studies.plan import Settings
from tests.test_configs import NAMES, resolved

UNPUBLISHED = ("inshop_hist", "inshop_diva")  # no paper gives settings or results

# Copied from the papers' tables and the authors' configuration files and commands, independently of `configs/`.
MPN = {
    "data.crop": "random_resized", "data.crop_scale": [0.08, 1.0], "data.image_size": 227, "data.resize": 256,
    "data.flip": 0.5, "data.erasing": 0.5, "backbone.name": "resnet", "backbone.block": "bottleneck",
    "backbone.depths": [3, 4, 6, 3], "backbone.freeze_bn": False, "backbone.stage_bn_updates": 2,
    "backbone.pixels.mean": [0.485, 0.456, 0.406], "backbone.pixels.std": [0.299, 0.224, 0.225],
    "method.equations": "authors", "method.embedding_dim": 512, "method.smoothing": 0.1, "method.dropout": 0.1,
    "method.pooling": "max", "method.k": 30, "train.epochs": 70, "train.warmup_epochs": 0, "train.optimizer": "radam",
    "train.schedule": "step", "train.milestones": [30], "train.gamma": 0.1,
}  # fmt: skip
MPN_ONLY = ("method.equations", "method.dropout", "method.k")
HIST = {
    "data.crop": "random_resized", "data.crop_scale": [0.08, 1.0], "data.image_size": 224, "data.resize": 256,
    "data.flip": 0.5, "data.erasing": 0.0, "data.sampler": "shuffled", "data.batch_size": 32,
    "method.embedding_dim": 512, "method.hidden_dim": 512, "method.hidden_layers": 1, "method.pooling": "avg+max",
    "method.layer_norm": True, "method.distance": "mahalanobis", "method.drop_underflow": True,
    "train.warmup_epochs": 1, "train.schedule": "step", "train.gamma": 0.5,
    "train.groups.backbone.warmup": "freeze", "train.groups.embedding.warmup": "train",
    "train.groups.distributions.warmup": "train", "train.groups.hgnn.warmup": "train",
}  # fmt: skip
CRT = {
    "data.sampler": "ms", "data.images_per_class": 5, "data.crop": "random_resized", "data.resize_first": True,
    "data.crop_scale": [0.16, 1.0], "data.image_size": 227, "data.resize": 256, "data.flip": 0.5,
    "method.embedding_dims": [128, 1024], "method.prototypes": [64, 64], "method.sharing": "shared",
    "method.gamma": "per_prototype", "method.lambda2": 0.9, "method.w_div": 1.0, "method.multi_similarity.alpha": 2.0,
    "method.multi_similarity.beta": 40.0, "method.multi_similarity.base": 0.5, "method.multi_similarity.epsilon": 0.1,
    "backbone.name": "mit", "backbone.depths": [3, 4, 6, 3], "backbone.widths": [64, 128, 320, 512],
    "train.optimizer": "adam", "train.groups.backbone.learning_rate": 3e-5,
    "train.groups.prototypes.learning_rate": 3e-5, "train.groups.embedding.learning_rate": 3e-5,
    "train.groups.backbone.weight_decay": 5e-4,
}  # fmt: skip
DIVA = {
    "data.sampler": "diva", "data.batch_size": 112, "data.images_per_class": 2, "data.crop": "random_resized",
    "data.crop_scale": [0.08, 1.0], "data.image_size": 224, "data.resize": 256, "data.flip": 0.5,
    "backbone.freeze_bn": True, "backbone.pixels.std": [0.229, 0.224, 0.225], "method.embedding_dim": 128,
    "method.tasks": ["discriminative", "selfsimilarity", "shared", "intra"], "method.base": "margin",
    "method.margin": 0.2, "method.beta": 1.2, "method.shared": "random", "method.dance": "original",
    "method.temperature": 0.01, "method.learn_temperature": False, "method.momentum": 0.9, "method.psi_dim": 512,
    "method.lower_cutoff": 0.5, "method.upper_cutoff": 1.4, "train.optimizer": "adam", "train.warmup_epochs": 0,
    "train.groups.model.learning_rate": 1e-5, "train.groups.model.weight_decay": 4e-4,
    "train.groups.beta.learning_rate": 5e-4, "train.groups.beta.weight_decay": 0.0,
    "train.groups.psi.learning_rate": 1e-5, "train.groups.psi.weight_decay": 0.0,
    "train.groups.temperature.learning_rate": 5e-4, "train.groups.temperature.weight_decay": 0.0,
    "train.schedule": "step",
}  # fmt: skip


def mpn(rate: float, decay: float, batch: tuple[int, int], t: float, layers: int, heads: int) -> dict[str, Any]:
    groups = {
        f"train.groups.{group}.{key}": value
        for group in ("backbone", "embedding", "auxiliary", "mpn")
        for key, value in (("learning_rate", rate), ("weight_decay", decay))
    }
    classes, images = batch
    return MPN | groups | {
        "data.batch_size": classes * images, "data.images_per_class": images, "method.temperature": t,
        "method.layers": layers, "method.heads": heads,
    }  # fmt: skip


def hist(
    tau: float, alpha: float, weight: float, rates: tuple[float, float, float], decay: float, epochs: int, every: int
) -> dict[str, Any]:
    backbone, distributions, hgnn = rates
    groups = {"backbone": backbone, "embedding": backbone, "distributions": distributions, "hgnn": hgnn}
    return (
        HIST
        | {"method.tau": tau, "method.alpha": alpha, "method.lambda_s": weight, "train.epochs": epochs}
        | {f"train.groups.{group}.learning_rate": rate for group, rate in groups.items()}
        | {f"train.groups.{group}.weight_decay": decay for group in groups}
        | {"train.milestones": [n * every for n in range(1, 13) if n * every < epochs]}
    )


def diva(rho: float, alpha: float, milestone: int, gamma: float, epochs: int, keys: int) -> dict[str, Any]:
    return DIVA | {
        "method.rho": [rho], "method.alpha_selfsimilarity": alpha, "method.alpha_shared": alpha,
        "method.alpha_intra": alpha, "train.milestones": [milestone], "train.gamma": gamma, "train.epochs": epochs,
        "method.queue_batches": keys,
    }  # fmt: skip


R50 = {"backbone.name": "resnet", "backbone.freeze_bn": True, "train.optimizer": "adam"}
THAWED = {"backbone.freeze_bn": False}
BNI = {
    "backbone.name": "bn_inception", "backbone.freeze_bn": True, "backbone.bn_momentum": 0.9,
    "backbone.pixels.mean": [104.0, 117.0, 128.0], "backbone.pixels.std": [1.0, 1.0, 1.0],
    "backbone.pixels.order": "bgr", "train.optimizer": "adamw",
}  # fmt: skip
IBN = {
    "backbone.name": "bn_inception", "backbone.freeze_bn": False, "backbone.bn_momentum": 0.1, "data.image_size": 227,
    "backbone.pixels.mean": [0.4078, 0.4588, 0.502], "backbone.pixels.std": [0.0039, 0.0039, 0.0039],
    "backbone.pixels.top": 1.0, "backbone.pixels.order": "bgr",
}  # fmt: skip
# No schedule of the learning rate, 150 epochs, BN-Inception; the paper's Table 1 lists CUB, Cars196 and SOP.
FIXED_RATE = {
    "train.schedule": "constant", "train.milestones": [], "train.epochs": 150, "backbone.name": "bn_inception",
    "train.groups.model.learning_rate": 1e-5,
}  # fmt: skip
D, DA, S, I = DIVA["method.tasks"]
COMBINATIONS = [
    ("D", [D], 512), ("D + DaNCE", [D, DA], 256), ("D + S", [D, S], 256), ("D + I", [D, I], 256),
    ("D + DaNCE + I", [D, DA, I], 170), ("D + S + I", [D, S, I], 170), ("D + DaNCE + S", [D, DA, S], 170),
    ("D + DaNCE + S + I", [D, DA, S, I], 128),
]  # fmt: skip


def published(second: str, *rows: tuple[float, float, float]) -> list[dict[str, float]]:
    """R@1, another Recall@K and NMI in percent, by key of the configuration."""
    keys = ("paper.recall@1", f"paper.{second}", "paper.nmi")
    return [dict(zip(keys, (round(value / 100, 6) for value in row), strict=True)) for row in rows]


DIVA_TABLE_1 = {
    "cub": published(
        "recall@2", (63.6, 74.7, 68.3), (64.5, 76.0, 68.8), (65.1, 76.4, 69.0), (64.9, 75.8, 68.4), (65.3, 76.5, 68.3),
        (65.5, 76.4, 68.4), (65.9, 76.7, 68.9), (66.4, 77.2, 69.6),
    ),
    "cars": published(
        "recall@2", (79.4, 86.6, 66.2), (80.4, 87.7, 67.2), (81.5, 88.3, 66.8), (80.6, 87.9, 67.4), (82.2, 89.1, 67.8),
        (82.1, 89.4, 67.2), (82.6, 89.6, 68.0), (83.1, 90.0, 68.1),
    ),
    "sop": published(
        "recall@10", (76.6, 89.2, 89.8), (77.0, 89.4, 90.1), (77.2, 89.6, 90.0), (76.9, 89.4, 89.9),
        (75.8, 89.0, 89.8), (77.0, 89.3, 89.7), (77.4, 89.6, 90.1), (77.5, 90.3, 90.1),
    ),
}  # fmt: skip


def table_1(tasks: list[str], dim: int) -> dict[str, Any]:
    return {"method.tasks": tasks, "method.embedding_dim": dim}


def group_loss(rate: float, decay: float, batch: tuple[int, int], anchors: int, t: float) -> dict[str, Any]:
    classes, images = batch
    return {
        "data.sampler": "mpn", "data.batch_size": classes * images, "data.images_per_class": images,
        "data.crop": "random_resized", "data.image_size": 227, "data.resize": 256, "data.flip": 0.5,
        "data.erasing": 0.0, "backbone.name": "bn_inception", "backbone.bn_momentum": 0.9, "backbone.freeze_bn": False,
        "backbone.pixels.mean": [104.0, 117.0, 128.0], "method.embedding_dim": 0, "method.pooling": "avg",
        "method.anchors": anchors, "method.iterations": 1, "method.temperature": t, "method.weight": 1.0,
        "train.optimizer": "radam", "train.epochs": 70, "train.schedule": "step", "train.milestones": [30],
        "train.gamma": 0.1, "train.groups.backbone.learning_rate": rate, "train.groups.classifier.weight_decay": decay,
    }  # fmt: skip


def student(rate: float, decay: float, batch: int, t: float, soft: float) -> dict[str, Any]:
    common = {key: value for key, value in MPN.items() if key not in MPN_ONLY}
    return common | {
        "data.batch_size": batch, "method.temperature": t, "method.soft_temperature": soft, "method.label_weight": 1.0,
        "train.groups.backbone.learning_rate": rate, "train.groups.auxiliary.weight_decay": decay,
    }  # fmt: skip


VALUES: dict[str, dict[str, Any]] = {
    "cub_mpn": mpn(0.0001563663718906821, 6.059722614369727e-06, (6, 9), 0.2, 1, 2)
    | {"data.sampler": "mpn_redraw", "method.concatenate": False, "method.losses": "both", "paper.recall@1": 0.703}
    | {"data.images_per_class": 4},  # not read: every epoch draws a new factorisation of 54
    "cub_mpn:refined": {"data.sampler": "mpn_redraw", "data.images_per_class": 9, "evaluation.refine": ["reciprocal"]},
    "cars_mpn": mpn(0.00036683239911604993, 2.551918610962277e-09, (10, 7), 0.1111111111111, 2, 8)
    | {"data.sampler": "mpn", "method.concatenate": True, "method.k_r": 7, "paper.recall@8": 0.982, "paper.nmi": 0.748},
    "sop_mpn": mpn(0.0002472471515853406, 2.7650277063275255e-13, (15, 6), 0.6046908988578005, 1, 8)
    | {"data.sampler": "mpn", "method.losses": "both", "evaluation.ks": [1, 10, 100, 1000], "paper.recall@100": 0.959},
    "sop_mpn:auxiliary": {"method.losses": "auxiliary", "train.reload_best_epochs": []},
    "inshop_mpn": mpn(0.00011265974954242144, 1.0554824926510768e-07, (14, 4), 0.18591347176280537, 1, 4)
    | {"data.sampler": "mpn", "evaluation.ks": [1, 10, 20, 30, 40], "paper.recall@40": 0.992},
    "cub_mpn:large": {"data.resize": 288, "data.image_size": 256, "paper.recall@1": 0.717, "paper.nmi": 0.743},
    "mpn_embedding_size:cars/64 dimensions": {"method.embedding_dim": 64, "paper.recall@1": 0.763},
    "mpn_embedding_size:sop/1024 dimensions --protocol=paper": {
        "method.embedding_dim": 1024, "paper.nmi": 0.925, "train.reload_best_epochs": [30, 50],
    },
    "mpn_losses:cub/MPN loss": {"method.losses": "mpn", "paper.recall@1": 0.681},
    "cars_mpn:refined": {"evaluation.refine": ["reciprocal"], "method.layers": 1, "method.heads": 4}
    | {"method.concatenate": False},
    "cub_hist": hist(32.0, 1.1, 1.0, (1.2e-4, 1e-1, 6e-4), 5e-5, 40, 5) | R50 | {"paper.nmi": 0.743},
    "cub_hist:retuned": hist(24.0, 1.15, 1.0, (1.2e-4, 1e-1, 6e-4), 5e-5, 40, 5) | R50 | {"paper.recall@1": 0.723},
    "cub_hist:bn_inception": hist(16.0, 1.0, 1.0, (1e-4, 5e-2, 5e-4), 1e-4, 30, 5) | BNI | {"paper.recall@1": 0.7},
    "cub_hist:bn_inception-retuned": hist(20.0, 0.95, 1.2, (1e-4, 5e-2, 5e-4), 1e-4, 30, 5) | BNI,
    "cars_hist": hist(32.0, 0.9, 1.0, (1e-4, 1e-1, 1e-3), 1e-4, 50, 10) | R50 | {"paper.recall@1": 0.898},
    "cars_hist:retuned": hist(32.0, 0.9, 0.8, (1e-4, 1e-1, 1e-3), 1e-4, 50, 10) | R50 | {"paper.recall@1": 0.902},
    "cars_hist:bn_inception": hist(24.0, 0.9, 1.0, (1e-4, 1e-1, 5e-4), 5e-5, 60, 10) | BNI,
    "cars_hist:bn_inception-retuned": hist(22.0, 1.0, 1.5, (1e-4, 1e-1, 5e-4), 5e-5, 60, 10) | BNI,
    "sop_hist": hist(16.0, 2.0, 1.0, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | R50 | THAWED | {"paper.recall@10": 0.922},
    "sop_hist:retuned": hist(20.0, 2.1, 0.5, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | R50 | THAWED,
    "sop_hist:bn_inception": hist(16.0, 1.6, 1.0, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | BNI | THAWED,
    "sop_hist:bn_inception-retuned": hist(12.0, 1.55, 1.5, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | BNI | THAWED,
    "cub_crt": CRT | {"data.batch_size": 80, "method.lambda1": [1.0, 0.1], "paper.recall@1": 0.7898},
    "cars_crt": CRT | {"data.batch_size": 80, "method.lambda1": [1.0, 0.1], "paper.recall@8": 0.9803},
    "sop_crt": CRT | {"data.batch_size": 180, "method.lambda1": [1.0, 0.9], "paper.recall@1000": 0.9931},
    "inshop_crt": CRT | {"data.batch_size": 180, "method.lambda1": [1.0, 0.9], "paper.recall@30": 0.9975},
    "cub_crt:ms_printed": {"method.multi_similarity.beta": 50.0, "method.multi_similarity.base": 1.0},
    "cub_crt:mit_b1": {"backbone.depths": [2, 2, 2, 2], "paper.recall@1": 0.7595},
    "crt_sharing:cub/sharing=separate": {"method.sharing": "separate", "paper.recall@1": 0.7596},
    "crt_gamma:cub/gamma=single": {"method.gamma": "single", "backbone.depths": [2, 2, 2, 2]},
    "crt_components:cub/without residuals": {
        "method.transform": "average", "method.lambda2": 0.9, "paper.recall@1": 0.7397,
    },
    "crt_backbones:inshop/DeiT-S, MS": {
        "method.transform": "average", "method.lambda1": [1.0, 0.0], "method.lambda2": 0.0, "backbone.name": "deit",
        "backbone.distilled": False, "paper.recall@1": 0.9247,
    },
    "cars_crt:googlenet": {"backbone.name": "googlenet", "backbone.transform_input": True, "paper.recall@1": 0.785},
    "sop_crt:bn_inception": {"backbone.name": "bn_inception", "paper.recall@10": 0.8904},
    "cars_crt:resnet50": {"backbone.name": "resnet", "backbone.depths": [3, 4, 6, 3], "paper.recall@2": 0.8976},
    "cub_diva": diva(1500.0, 0.3, 55, 0.2, 350, 30) | {"method.ensemble": [1.0, 2.0, 2.0, 2.0], "paper.nmi": 0.714},
    "cub_diva:bn_inception": diva(300.0, 0.1, 70, 0.3, 350, 30) | IBN | {"paper.recall@1": 0.668},
    "cars_diva": diva(100.0, 0.15, 70, 0.2, 350, 30) | {"paper.recall@1": 0.876},
    "cars_diva:bn_inception": diva(100.0, 0.15, 160, 0.3, 350, 30) | IBN | {"paper.recall@2": 0.907},
    "sop_diva": diva(150.0, 0.2, 70, 0.3, 150, 70) | {"method.ensemble": [1.0, 1.0, 1.0, 1.0], "paper.nmi": 0.906},
    "sop_diva:bn_inception": diva(150.0, 0.1, 80, 0.3, 150, 70) | IBN | {"paper.recall@10": 0.906},
    "cub_baseline": {
        "method.loss": "normalized_softmax", "method.layer_norm": True, "method.normalized_softmax.temperature": 0.05,
        "data.batch_size": 75, "data.images_per_class": 25, "data.crop": "random", "data.resize": 256,
        "data.image_size": 224, "train.optimizer": "sgd", "train.momentum": 0.9,
        "train.groups.backbone.learning_rate": 1e-3,
        "train.groups.embedding.weight_decay": 1e-4, "train.groups.backbone.warmup": "freeze", "train.epochs": 30,
        "train.warmup_epochs": 1, "train.milestones": [15], "train.gamma": 0.1, "paper.recall@1": 0.613,
    },
    "sop_baseline:normalized_softmax": {"data.images_per_class": 5, "train.groups.backbone.learning_rate": 1e-2},
    "cub_baseline:proxy_anchor": {
        "method.pooling": "avg+max", "method.proxy_anchor.margin": 0.1, "method.proxy_anchor.alpha": 32.0,
        "data.sampler": "shuffled", "data.batch_size": 120, "backbone.freeze_bn": True, "train.optimizer": "adamw",
        "train.groups.embedding.learning_rate": 1e-4, "train.groups.loss.learning_rate": 1e-2,
        "train.groups.loss.weight_decay": 1e-4, "train.warmup_epochs": 5, "train.epochs": 55, "train.gamma": 0.5,
        "train.milestones": [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50], "paper.recall@8": 0.924,
    },
    "inshop_baseline:proxy_anchor --protocol=paper": {
        "data.batch_size": 180, "backbone.freeze_bn": False, "train.groups.backbone.learning_rate": 6e-4,
        "train.warmup_epochs": 1, "train.milestones": [19, 39], "train.gamma": 0.25, "paper.recall@40": 0.992,
    },
    "cars_baseline:proxy_nca_pp": {
        "method.pooling": "max", "method.layer_norm": True, "data.batch_size": 32, "data.images_per_class": 4,
        "data.image_size": 256, "data.resize": 288, "train.epochs": 40, "train.warmup_epochs": 5, "paper.nmi": 0.738,
    },
    "sop_baseline:margin": {
        "method.margin.beta": 1.2, "method.margin.margin": 0.2, "method.margin.mining": "distance_weighted",
        "data.sampler": "diva", "data.batch_size": 112, "data.images_per_class": 2, "backbone.freeze_bn": True,
        "train.optimizer": "adam", "train.epochs": 100, "train.groups.backbone.learning_rate": 1e-5,
        "train.groups.embedding.weight_decay": 4e-4, "train.groups.loss.learning_rate": 5e-4,
        "train.groups.loss.weight_decay": 0.0, "train.schedule": "constant",
    },
    "cub_baseline:soft_triple": {
        "method.soft_triple.centers": 2, "method.soft_triple.scale": 8.0, "method.soft_triple.gamma": 0.1,
        "method.soft_triple.margin": 0.01, "method.soft_triple.spread": 0.2, "train.epochs": 150,
    },
    "inshop_baseline:contrastive-memory": {
        "method.memory": 25_882, "method.memory_after": 1000, "method.memory_weight": 1.0, "data.batch_size": 64,
        "data.images_per_class": 4, "data.crop_scale": [0.2, 1.0], "train.steps": 35_000,
        "train.groups.backbone.learning_rate": 1e-4, "train.groups.backbone.weight_decay": 5e-4,
        "paper.recall@1": 0.913,
    },
    "cars_baseline": {
        "method.loss": "normalized_softmax", "data.batch_size": 75, "data.images_per_class": 25,
        "data.image_size": 224, "train.groups.backbone.learning_rate": 1e-2, "train.epochs": 30,
        "paper.recall@1": 0.842, "paper.nmi": 0.74,
    },
    "sop_baseline": {
        "data.images_per_class": 5, "train.groups.backbone.learning_rate": 1e-2, "paper.recall@100": 0.962,
    },
    "inshop_baseline": {"data.images_per_class": 5, "train.groups.backbone.learning_rate": 1e-2, "paper": {}},
    "cub_baseline:proxy_nca_pp": {"data.image_size": 256, "paper.recall@1": 0.69, "paper.nmi": 0.739},
    "sop_baseline:proxy_nca_pp": {"data.image_size": 256, "data.batch_size": 192, "paper.recall@1": 0.807},
    "cub_group_loss": group_loss(0.0001563663718906821, 6.059722614369727e-06, (6, 9), 2, 24.0)
    | {"paper.recall@1": 0.655, "paper.recall@8": 0.913, "paper.nmi": 0.69},
    "cars_group_loss": group_loss(0.0002, 4.863656728256105e-07, (5, 7), 3, 79.0)
    | {"paper.recall@1": 0.856, "paper.recall@8": 0.97, "paper.nmi": 0.727},
    "cub_student": student(0.0001563663718906821, 6.059722614369727e-06, 54, 0.2, 1.0)
    | {"data.sampler": "mpn_redraw", "method.teacher": "runs/cub_mpn", "method.kind": "distillation"}
    | {"method.weight": 1.0, "paper.recall@1": 0.657, "paper.nmi": 0.703},
    "cars_student": student(0.00036683239911604993, 2.551918610962277e-09, 70, 0.1111111111111, 10.0)
    | {"data.images_per_class": 7, "paper.recall@1": 0.856, "paper.nmi": 0.716},
    "cub_student:imitation --protocol=paper": {
        "method.kind": "imitation", "method.weight": 1.0, "method.teacher": "runs/cub_mpn-paper",
        "paper.recall@1": 0.653, "paper.nmi": 0.701,
    },
    "cars_student:relational": {"method.weight": 0.01, "paper.recall@1": 0.847, "paper.nmi": 0.705},
    "hist_distances:cars/distance=euclidean": {
        "method.distance": "euclidean", "method.tau": 32.0, "paper.recall@4": 0.954,
    },
    "hist_distances:cars/distance=cosine": {
        "method.distance": "cosine", "method.lambda_s": 0.8, "paper.recall@1": 0.887,
    },
    "hist_layers:cars/hidden_layers=0": {"method.hidden_layers": 0, "paper": {}},
    "hist_layers:cars/hidden_layers=4 --protocol=paper": {
        "method.hidden_layers": 4, "evaluation.nmi_average": "geometric",
    },
    "hist_batch_size:cars/batch_size=8": {"data.batch_size": 8, "paper": {}},
    "hist_alpha:cars/alpha=1.2": {"method.alpha": 1.2, "method.tau": 32.0},
    "hist_sizes:cars/embedding_dim=1024 hidden_dim=256": {
        "method.embedding_dim": 1024, "method.hidden_dim": 256, "paper.recall@1": 0.8867,
    },
    "hist_tau_lambda:cars/tau=8 lambda_s=1.5": {"method.tau": 8.0, "method.lambda_s": 1.5, "paper.recall@1": 0.7863},
    "crt_branches:cub/branch 2": {"method.tested_branch": "branch2", "backbone.depths": [3, 4, 6, 3], "paper": {}},
    "crt_branches:sop/branch 2 --protocol=paper": {"method.tested_branch": "branch2", "backbone.drop_path": 0.1},
    **{
        f"diva_tasks:{data}/{name}": FIXED_RATE | table_1(names, dim) | row
        for data, rows in DIVA_TABLE_1.items()
        for (name, names, dim), row in zip(COMBINATIONS, rows, strict=True)
    },
    "diva_tasks:cub/D + DaNCE + I --protocol=clean": {"method.directions": [], "method.ensemble": [1.0, 2.0, 2.0, 2.0]},
    "diva_tasks:cub/D + DaNCE + S --protocol=paper": {
        "method.directions": ["selfsimilarity-discriminative", "shared-discriminative", "shared-selfsimilarity"],
    },
    "diva_separate:cub/no decorrelation": FIXED_RATE
    | {"method.directions": [], "method.embedding_dim": 128, "paper.recall@1": 0.656},
    "diva_separate:cub/separate_intra": FIXED_RATE | {"method.tasks": ["intra"], "method.embedding_dim": 128},
    "diva_self_supervision:cub/NCE": FIXED_RATE | {"method.dance": "off", "method.embedding_dim": 256, "paper": {}},
    "diva_self_supervision:cub/DeepCluster": FIXED_RATE
    | {"method.selfsimilarity": "deepcluster", "method.clusters": 300, "method.embedding_dim": 512},
    "diva_self_supervision:cub/discriminative ensemble": FIXED_RATE | {"method.learners": "discriminative"},
    "cars_diva:triplet": diva(100.0, 0.15, 70, 0.2, 350, 30) | {"method.base": "triplet", "paper.recall@1": 0.873},
    "cub_diva:bn_inception-triplet --protocol=paper": {"method.base": "triplet", "paper.recall@1": 0.667} | IBN,
}  # fmt: skip


def values_of(path: str) -> dict[str, Any]:
    """The resolved values of a configuration, or of the row of a study, with its published numbers."""
    experiment, _, protocol = path.partition(" --protocol=")
    study, _, name = experiment.partition("/")
    if not name:
        config, variant = [*study.split(":"), ""][:2]
        values = asdict(resolved(config, variant, protocol or None))
        return values | {"paper": beside(values)}
    _, found = plan.load("configs/studies/" + study.replace(":", ".py:"))
    row = next(row for row in found.rows if row.name == name)
    made, _ = plan.resolved(row.config, row.overrides, Settings(Path("root"), paper=protocol == "paper"))
    values = asdict(made)
    return values | {"paper": next(filter(None, row.reported.values()), beside(values))}


def beside(values: dict[str, Any]) -> dict[str, float]:
    """The published result beside a run of the paper protocol: the paper's, or else the only one."""
    known: dict[str, dict[str, float]] = values["paper"].get("paper", {})
    return known.get("paper") or next(iter(known.values()), {})


def test_every_published_configuration_has_values() -> None:
    assert {path for path in VALUES if ":" not in path} == set(NAMES) - set(UNPUBLISHED)


@pytest.mark.parametrize("path", VALUES)
def test_values(path: str) -> None:
    config = values_of(path)
    found = flatten(config) | {"paper": config["paper"]}
    assert {key: found[key] for key in VALUES[path]} == VALUES[path]
