"""Every method on EfficientNet-Lite0, frozen or with its last stages trained, for your own image folders.

    python -m dml_jax.main --config=configs/folder_heads.py:hist --config.data.path=photos/
    python -m dml_jax.main --config=configs/folder_heads.py:hist-stages --config.data.path=photos/

Data and network are those of `folder_baseline.py`. All methods train for 200 steps on batches of 16 classes (CRT: 8)
with 4 images; only a linear layer, or CRT's prototypes and heads, and the parameters of the loss are trained. CRT needs
whole feature maps, which are stored when claims are tested (`dml-jax study --claims=crt --on=photos`); the command
above refuses it.

The variants `METHOD-stages` (not of DiVA) also train blocks 11 to 15 and the last convolution, for 150 steps of 32
images in random crops of 128 pixels; claims are tested on them with `--on=photos_stages`.
"""

from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from configs.base import experiment
from configs.folder_baseline import BACKBONE, DATA, EVALUATION, ON_FEATURES
from dml_jax.config import Group
from dml_jax.methods import baseline, crt, diva, group_loss, hist, mpn

FROZEN = Group(0.0, freeze=True)
NETWORK = Group(1e-4, weight_decay=1e-4)
LAYER = Group(3e-4, weight_decay=1e-4)
FASTER = Group(1e-3, weight_decay=1e-4)
METHODS: dict[str, tuple[Any, dict[str, Group]]] = {  # with the groups beside the backbone
    "hist": (
        hist.Config(embedding_dim=256, hidden_dim=256, pooling="avg", tau=8.0, alpha=1.0),
        {"embedding": FASTER, "distributions": Group(1e-1, weight_decay=1e-4), "hgnn": Group(1e-3)},
    ),
    "mpn": (
        mpn.Config(embedding_dim=256, pooling="avg", temperature=0.2),
        {"embedding": LAYER, "auxiliary": LAYER, "mpn": LAYER},
    ),
    "group_loss": (
        group_loss.Config(embedding_dim=256, pooling="avg", anchors=1),
        {"embedding": LAYER, "classifier": LAYER},
    ),
    "crt": (
        crt.Config(embedding_dims=(128, 256), prototypes=(16, 16), hidden_dim=128),
        {"prototypes": FASTER, "embedding": FASTER},
    ),
    "diva": (
        diva.Config(
            embedding_dim=64,
            base="triplet",
            rho=(15.0,),
            temperature=0.1,
            ensemble=(1.0, 1.0, 1.0, 1.0),
            queue_batches=10,
        ),
        {"model": FASTER, "beta": Group(5e-4), "psi": LAYER},
    ),
    **{
        name: (baseline.make_config(name, embedding_dim=256), {"embedding": LAYER, "loss": Group(1e-2)})
        for name in ("proxy_anchor", "multi_similarity", "normalized_softmax")
    },
}
STAGES = ("backbone/blocks_1[1-5]", "backbone/conv_head", "backbone/bn1")  # the last two stages and the head
VARIANTS = (*METHODS, *(f"{name}-stages" for name in METHODS if name != "diva"))


def file_of(data: str, method: str) -> str:
    """The configuration of a method in studies, on `photos`, `photos_stages` or a data set of the papers."""
    variants = {"photos": method, "photos_stages": f"{method}-stages"}
    return f"configs/folder_heads.py:{variants[data]}" if data in variants else f"configs/{data}_{method}.py"


def get_config(variant: str = "hist") -> ConfigDict:
    name, _, stages = variant.partition("-")
    method, groups = METHODS[name]
    if name != "diva":
        groups = {"backbone": FROZEN, **groups}
    data = replace(DATA, training_size=0, batch_size=32 if name == "crt" else 64)
    train = replace(ON_FEATURES, groups=groups, steps=200)
    if stages:
        data = replace(data, training_size=128, batch_size=32)
        train = replace(train, groups=groups | dict.fromkeys(STAGES, NETWORK), feature_views=0, steps=150)
    return experiment(
        "folder_heads",
        variant,
        data=data,
        backbone=BACKBONE,
        method=method,
        train=train,
        evaluation=replace(EVALUATION, controls=False, cluster=name == "mpn"),
    )
