"""The baselines on small networks trained from scratch: one variant per loss; `triplet` uses
semi-hard mining.

No paper reports these. Angular margins and scales are lower than those published for faces, losses
with several centres per class have two, and lifted structure uses unnormalised embeddings, as in
its paper; all other options have their defaults. `-memory` after a pair loss adds pairs with the
last 1,024 embeddings, after 100 steps (Wang et al., CVPR 2020, wait for 1,000).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs import base
from dml_jax.config import Group, Train
from dml_jax.methods import baseline

# By variant: the loss, and its options that are not the defaults.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "normalized_softmax": ("normalized_softmax", {}),
    **{loss: (loss, {}) for loss in baseline.LOSSES},
    "arcface": ("arcface", {"margin": 0.2, "scale": 20.0}),
    "subcenter_arcface": ("subcenter_arcface", {"margin": 0.2, "scale": 20.0, "centers": 2}),
    "cosface": ("cosface", {"margin": 0.1, "scale": 20.0}),
    "soft_triple": ("soft_triple", {"centers": 2}),
    "lifted_structure": ("lifted_structure", {"normalize": False}),
    "triplet_random": ("triplet", {"mining": "random"}),
    "triplet_hard": ("triplet", {"mining": "hard"}),
    "triplet_distance_weighted": ("triplet", {"mining": "distance_weighted"}),
}
SLOWER = ("contrastive", "triplet", "triplet_random", "triplet_distance_weighted", "n_pair")
SLOW = 1e-3  # highest learning rate of the network with these losses
RATES = {"cross_entropy": 4e-3, "margin": 5e-3}  # rates of the loss's parameters; others: 1e-2
MEMORIES = {
    f"{name}-memory": name for name, (loss, _) in OPTIONS.items() if loss in baseline.PAIR_LOSSES
}
VARIANTS = (*OPTIONS, *MEMORIES)


def on(
    sections: dict[str, Any], rate: float, every: int
) -> tuple[tuple[str, ...], Callable[..., ConfigDict]]:
    """VARIANTS and `get_config` of the file of a data set.

    Args:
      sections: data, backbone and evaluation.
      rate: learning rate of the network; at most SLOW for the losses in SLOWER.
      every: steps between two evaluations.
    """
    return VARIANTS, partial(config, sections, rate, every)


def config(sections: dict[str, Any], rate: float, every: int, variant: str = "") -> ConfigDict:
    """A baseline with 64 dimensions; `variant` is one of VARIANTS, "" the first."""
    name = variant or next(iter(OPTIONS))
    loss = MEMORIES.get(name, name)
    method = baseline.make_config(*OPTIONS[loss], embedding_dim=64)
    if name in MEMORIES:
        method = replace(method, memory=1024, memory_after=100)
    body = Group(min(SLOW, rate) if loss in SLOWER else rate, weight_decay=1e-4)
    own = Group(RATES.get(loss, 1e-2), weight_decay=0.0 if loss == "margin" else 1e-4)
    groups = {"backbone": body, "embedding": body, "loss": own}
    train = Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=every)
    file = f"{sections['data'].name}_baseline"
    return base.experiment(file, variant, method=method, train=train, **sections)
