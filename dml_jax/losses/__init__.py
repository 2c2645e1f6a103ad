"""Losses for deep metric learning, as functions of a batch that return a scalar.

    losses.triplet(embeddings, labels, margin=0.2, key=key)
    losses.multi_similarity(embeddings, labels)
    losses.proxy_anchor(embeddings, labels, proxies, margin=0.1, alpha=32)

`help(losses.triplet)` describes all arguments, with shapes and ranges. Pairs come from exactly one
source: the labels of the batch, or `labels` and `candidate_labels`; masks or weights of pairs,
`losses.triplet(x, positive=p, negative=n, key=key)`; or a `relation` of labels.

`per_anchor(loss, embeddings, labels, …)` returns the loss of each anchor, [N].

Losses have first and second derivatives in forward and reverse mode, also under `vmap` and
`checkpoint`. Hinges, mining and equal rows contribute 0 to second derivatives.

Wrong shapes, types and values raise `DataError`, and options that break their rules `ConfigError`.
Values of traced arrays are not checked. The methods also use pairwise similarities and masks
(`pairwise`), triplet mining (`mining`), the memory of past batches (`cross_batch_memory`), and the
terms of losses (`pair_losses`, `similarity_losses`).
"""

from dml_jax.losses.classification import (
    arcface,
    cosface,
    normalized_softmax,
    softmax,
    subcenter_arcface,
)
from dml_jax.losses.pair_losses import contrastive, lifted_structure, margin, n_pair, triplet
from dml_jax.losses.pairwise import Candidates, per_anchor
from dml_jax.losses.proxies import proxy_anchor, proxy_nca, proxy_nca_pp, soft_triple
from dml_jax.losses.ranking import recall_at_k, smooth_ap
from dml_jax.losses.similarity_losses import circle, multi_similarity, nt_xent, sup_con

__all__ = [
    "Candidates",
    "arcface",
    "circle",
    "contrastive",
    "cosface",
    "lifted_structure",
    "margin",
    "multi_similarity",
    "n_pair",
    "normalized_softmax",
    "nt_xent",
    "per_anchor",
    "proxy_anchor",
    "proxy_nca",
    "proxy_nca_pp",
    "recall_at_k",
    "smooth_ap",
    "soft_triple",
    "softmax",
    "subcenter_arcface",
    "sup_con",
    "triplet",
]
