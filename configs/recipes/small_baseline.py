"""The baselines on small networks from scratch, which no paper reports: a loss a variant, `triplet` being semi-hard.

The angular margins and scales are lower than those published for faces, the centres of a class fewer, the embeddings of
lifted structure raw as in its paper; the other options are the published ones. `-memory` behind a pair loss adds the
pairs with the last 1,024 embeddings after 100 steps (Wang et al., CVPR 2020, wait for 1,000).
"""

from dataclasses import asdict, replace

from ml_collections import ConfigDict

from dml_jax.config import Group, Train
from dml_jax.methods import baseline
from dml_jax.methods.baseline import options

METHODS = {
    "normalized_softmax": baseline.Config(),
    "cross_entropy": baseline.Config(loss="cross_entropy"),
    "arcface": baseline.Config(loss="arcface", arcface=options.ArcFace(margin=0.2, scale=20.0)),
    "cosface": baseline.Config(loss="cosface", cosface=options.CosFace(margin=0.1, scale=20.0)),
    "proxy_nca": baseline.Config(loss="proxy_nca"),
    "proxy_nca_pp": baseline.Config(loss="proxy_nca_pp"),
    "proxy_anchor": baseline.Config(loss="proxy_anchor"),
    "soft_triple": baseline.Config(loss="soft_triple", soft_triple=options.SoftTriple(centers=2)),
    "contrastive": baseline.Config(loss="contrastive"),
    "triplet": baseline.Config(loss="triplet"),
    "triplet_random": baseline.Config(loss="triplet", triplet=options.Triplet(mining="random")),
    "triplet_hard": baseline.Config(loss="triplet", triplet=options.Triplet(mining="hard")),
    "triplet_distance_weighted": baseline.Config(loss="triplet", triplet=options.Triplet(mining="distance_weighted")),
    "margin": baseline.Config(loss="margin"),
    "n_pair": baseline.Config(loss="n_pair"),
    "lifted_structure": baseline.Config(
        loss="lifted_structure", lifted_structure=options.LiftedStructure(normalize=False)
    ),
    "multi_similarity": baseline.Config(loss="multi_similarity"),
}
SLOWER = ("contrastive", "triplet", "triplet_random", "triplet_distance_weighted", "n_pair")
SLOW = 1e-3  # largest rate of the network under these losses
RATES = {"cross_entropy": 4e-3, "margin": 5e-3}  # of the loss's own parameters; else 1e-2
MEMORIES = tuple(f"{name}-memory" for name, method in METHODS.items() if method.loss in options.PAIR_LOSSES)
VARIANTS = (*METHODS, *MEMORIES)


def recipe(config: ConfigDict, name: str, variant: str) -> ConfigDict:
    """A baseline in place of the method of `config`, whose data, network, length and schedule stay.

    Args:
      config: of another method; its network's rate stays too, but for the losses in SLOWER.
      name: of the experiment; the variant is put behind it.
      variant: one of VARIANTS; "" is the first.
    """
    loss, *memory = (variant or next(iter(METHODS))).split("-")
    method = replace(METHODS[loss], embedding_dim=config.method.embedding_dim)
    if memory:
        method = replace(method, memory=1024, memory_after=100)
    body = Group(**config.train.groups.backbone)
    body = replace(body, learning_rate=min(SLOW, body.learning_rate)) if loss in SLOWER else body
    own = Group(RATES.get(loss, 1e-2), weight_decay=0.0 if loss == "margin" else 1e-4)
    schedule = {key: config.train[key] for key in ("steps", "schedule", "evaluate_every")}
    config.name = f"{name}-{variant}" if variant else name
    config.method = asdict(method)
    config.train = asdict(Train(groups={"backbone": body, "embedding": body, "loss": own}, **schedule))
    return config
