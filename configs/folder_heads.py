"""Every method on the frozen features of EfficientNet-Lite0, for your own image folders; one variant per method.

    python -m dml_jax.main --config=configs/folder_heads.py:hist --config.data.path=photos/

Data and network are those of `folder_baseline.py`. All methods train for 200 steps on batches of 16 classes (CRT: 8)
with 4 images; only a linear layer, or CRT's prototypes and heads, and the parameters of the loss are trained. CRT and
DiVA train on stored feature maps only, which is how claims are tested (`dml-jax study --claims=crt --on=photos`).
"""

from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from configs.base import experiment
from configs.folder_baseline import BACKBONE, DATA, EVALUATION, ON_FEATURES
from dml_jax.config import Group
from dml_jax.methods import baseline, crt, diva, group_loss, hist, mpn

FROZEN = Group(0.0, freeze=True)
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
VARIANTS = tuple(METHODS)


def get_config(variant: str = "hist") -> ConfigDict:
    method, groups = METHODS[variant]
    return experiment(
        "folder_heads",
        variant,
        data=replace(DATA, training_size=0, batch_size=32 if variant == "crt" else 64),
        backbone=BACKBONE,
        method=method,
        train=replace(ON_FEATURES, groups=groups if variant == "diva" else {"backbone": FROZEN, **groups}, steps=200),
        evaluation=replace(EVALUATION, controls=False, cluster=variant == "mpn"),
    )
