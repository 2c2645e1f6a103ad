"""Losses of deep metric learning, as functions of a batch that return a scalar.

    losses.triplet(embeddings, labels, margin=0.2, key=key)
    losses.multi_similarity(embeddings, labels)
    losses.proxy_anchor(embeddings, labels, proxies, margin=0.1, alpha=32)

Arguments that several losses share, described here only:

- `embeddings`: float [N, D] of any norm. Losses on distances or cosines normalise them; `softmax`
  and `n_pair` do not.
- `labels`: int [N], or text where no parameter belongs to a class. Losses with one learned
  parameter per class need 0..C-1 and are NaN for any other label. Under `jit`, JAX cuts the
  arguments of your function to 32 bits before a loss sees them: number larger labels first,
  `np.unique(labels, return_inverse=True)[1]`.
- `proxies`: float [C, D], or [C, K, D] for K centers per class, of any norm; learned, like
  `kernel`, `bias` and `beta`.
- `candidates`: embeddings with which a pair loss compares the anchors; None for the batch itself.
- `positive`, `negative`: relations of any pairs in place of labels, masks or weights [N, M]:
  `losses.triplet(x, positive=p, negative=n, key=key)`. M are the rows of `candidates` [M, D], or of
  the batch. `smooth_ap` and `recall_at_k` take masks only. A pair may be neither.
- `relation`: a function (labels [N], labels [N]) -> weights [N, N] that determines both: a pair
  with a weight > 0 is positive, with 0 negative, with NaN neither.
- `distance`: a function of two blocks of rows, [N, D] and [M, D] -> [N, M], in place of the
  Euclidean distance of unit embeddings; losses on similarities take -distance for the similarity.
- `divisor`: whether a loss on pairs is the mean over "all" anchors, pairs or triplets, or over the
  "active" ones, those with a positive loss.
- `reduce`: with None, a loss on pairs returns the values that it averages, one per anchor [N] or
  pair [N, M]; values that do not count are 0.
- `key`: random key of losses that mine at random.
- `weights`: float [N] >= 0, of the anchors; a mean over anchors, or over their pairs or triplets,
  becomes a weighted mean, which is 0 if all weights are. Weights of classes are
  `weights=class_weights[labels]`.

`per_anchor(loss, embeddings, labels, …)` is the loss of each anchor of a batch, [N].

Losses have first and second derivatives in forward and reverse mode, also under `vmap` and
`checkpoint`. Hinges, the choices of mining, and equal rows contribute 0 to second derivatives.

Wrong shapes, types and values raise `DataError`, and options that break their rules `ConfigError`.
While a program is traced, the values of its arguments are not known and not checked. The methods
also build upon pairwise similarities and masks (`pairwise`), triplet mining (`mining`), the memory
of past batches (`cross_batch_memory`), and losses of given pairs and triplets (`pair_losses`,
`similarity_losses`).
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
