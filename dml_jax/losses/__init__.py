"""Losses of deep metric learning, as functions of a batch.

Every loss takes embeddings float [N, D] and labels int [N], then its learned parameters if it has any, and options by
name. It returns a scalar. Embeddings need not be of unit length. Losses that mine at random take a `key`.

    losses.triplet(embeddings, labels, margin=0.2, key=key)
    losses.multi_similarity(embeddings, labels)
    losses.proxy_anchor(embeddings, labels, proxies, margin=0.1, alpha=32)

The modules also hold what the methods build upon: pairwise similarities and masks (`pairwise`), triplet mining
(`mining`), the memory of past batches (`cross_batch_memory`), and losses of given pairs and triplets (`pair_losses`,
`similarity_losses`).
"""

from dml_jax.losses.classification import arcface, cosface, normalized_softmax, softmax, subcenter_arcface
from dml_jax.losses.pair_losses import contrastive, lifted_structure, margin, n_pair, triplet
from dml_jax.losses.pairwise import Candidates
from dml_jax.losses.proxies import proxy_anchor, proxy_nca, proxy_nca_pp, soft_triple
from dml_jax.losses.ranking import recall_at_k, smooth_ap
from dml_jax.losses.similarity_losses import circle, multi_similarity, sup_con

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
