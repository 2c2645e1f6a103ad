"""The baselines' losses, forward and backward, compared with pytorch-metric-learning on the same
number of threads.

Both get the same float32 embeddings, labels and proxies and must give the same value, except where
mining is random or the other library uses a different form of the loss. With a memory, both compare
the batch with itself and with 8,192 - B embeddings of past batches, and append it to them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import timing
from dml_jax.backbones import functional
from dml_jax.losses import Candidates, cross_batch_memory, pairwise
from dml_jax.methods import baseline

MEMORY = 8192
HARD = {"mining": "hard", "squared": False}
KEEP = {"copies": "keep"}
CASES: dict[
    str, dict[str, Any]
] = {  # options that differ from the defaults; a case starts with the name of its loss
    "cross_entropy": {},
    "normalized_softmax": {},
    "arcface": {},
    "cosface": {},
    "proxy_nca": {},
    "proxy_nca_pp": {},
    "proxy_anchor": {},
    "soft_triple": {"spread": 0.0},
    "contrastive": {},
    "triplet": HARD,
    "triplet distance-weighted": {"mining": "distance_weighted", "squared": False},
    "margin": {},
    "n_pair": {},
    "lifted_structure": {},
    "multi_similarity": KEEP,
    "contrastive with memory": {},
    "triplet with memory": HARD,
    "multi_similarity with memory": KEEP,
}
# Random mining; the random pair of a class; the other library includes the own proxy in the
# denominator.
OTHER_VALUE = ("triplet distance-weighted", "margin", "n_pair", "proxy_nca")


def inputs(
    batch: int, dim: int, classes: int, per_class: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings [B, D] with weak clusters by class, and labels [B]."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.choice(classes, batch // per_class, replace=False), per_class)
    centers = rng.normal(size=(classes, dim))
    return (rng.normal(size=(batch, dim)) + 0.7 * centers[labels]).astype(np.float32), labels


def ours(
    x: np.ndarray, labels: np.ndarray, params: Any, past: Any, criterion: baseline.Criterion
) -> Callable[[], jax.Array]:
    """One call: loss, gradients of embeddings and of the loss's parameters; appends to the memory
    `past`, if any."""

    def loss(
        params: Any, x: jax.Array, labels: jax.Array, past: Any, seed: jax.Array
    ) -> tuple[jax.Array, Any]:
        candidates = None
        if past is not None:
            kept = jax.tree.map(lambda rows: rows[len(x) :], past)
            both = (
                Candidates(x, *pairwise.masks(labels)),
                cross_batch_memory.candidates(kept, labels),
            )
            embeddings, positive, negative = zip(*both, strict=True)
            masks = (jnp.concatenate(pairs, axis=1) for pairs in (positive, negative))
            candidates = Candidates(jnp.concatenate(embeddings), *masks)
            past = cross_batch_memory.enqueue(past, {"embeddings": x, "labels": labels})
        key = jax.random.key(seed)
        values: Any = criterion.apply(
            {"params": params}, x, labels, key, candidates, method="values"
        )
        return sum(values.values()), past

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    given = params, jnp.asarray(x), jnp.asarray(labels), jax.tree.map(jnp.asarray, past)
    count = iter(range(1_000_000))
    return lambda: jax.block_until_ready(gradient(*given, np.int32(next(count))))[0][0]


def theirs(
    x: np.ndarray, labels: np.ndarray, params: Any, past: Any, classes: int, case: str
) -> Callable[[], Any]:
    """The same in pytorch-metric-learning; cross-entropy in torch itself."""
    import torch
    from pytorch_metric_learning import distances, losses, miners, reducers

    dim, loss = x.shape[1], case.split()[0]
    miner: Any = None
    if loss == "cross_entropy":
        return _torch_cross_entropy(x, labels, params)
    made: dict[str, Callable[[], Any]] = {
        "normalized_softmax": lambda: losses.NormalizedSoftmaxLoss(classes, dim, temperature=0.05),
        "arcface": lambda: losses.ArcFaceLoss(
            classes, dim, margin=float(np.degrees(0.5)), scale=64
        ),
        "cosface": lambda: losses.CosFaceLoss(classes, dim, margin=0.35, scale=64),
        "proxy_nca": lambda: losses.ProxyNCALoss(classes, dim, softmax_scale=9),
        "proxy_nca_pp": lambda: losses.ProxyNCALoss(classes, dim, softmax_scale=9),
        "proxy_anchor": lambda: losses.ProxyAnchorLoss(classes, dim, margin=0.1, alpha=32),
        "soft_triple": lambda: losses.SoftTripleLoss(
            classes, dim, centers_per_class=10, la=20, gamma=0.1, margin=0.01
        ),
        "contrastive": lambda: losses.ContrastiveLoss(pos_margin=0, neg_margin=1),
        "triplet": lambda: losses.TripletMarginLoss(margin=0.2, reducer=reducers.MeanReducer()),
        "margin": lambda: losses.MarginLoss(
            margin=0.2, beta=1.2, learn_beta=True, num_classes=classes
        ),
        "n_pair": lambda: losses.NPairsLoss(),
        "lifted_structure": lambda: losses.LiftedStructureLoss(
            neg_margin=1, distance=distances.LpDistance()
        ),
        "multi_similarity": lambda: losses.MultiSimilarityLoss(alpha=2, beta=40, base=0.5),
    }
    criterion = made[loss]()
    if loss == "margin" or "distance-weighted" in case:
        miner = miners.DistanceWeightedMiner(cutoff=0.5, nonzero_loss_cutoff=2.0)
    elif loss == "triplet":
        miner = miners.BatchHardMiner()
    elif loss == "multi_similarity":
        miner = miners.MultiSimilarityMiner(epsilon=0.1)
    weights = list(criterion.parameters())
    if "proxies" in params:
        proxies = np.array(params["proxies"], np.float32).reshape(-1, dim)
        stored = weights[0].data
        stored.copy_(torch.as_tensor(proxies if stored.shape[0] == len(proxies) else proxies.T))
    if past:
        queue = losses.CrossBatchMemory(criterion, dim, MEMORY, miner)
        queue.embedding_memory, queue.label_memory = (
            torch.tensor(past[key]) for key in ("embeddings", "labels")
        )
        queue.has_been_filled, miner = True, None
        criterion = queue
    embeddings, classes_of = torch.tensor(x, requires_grad=True), torch.as_tensor(labels)

    def call() -> float:
        mined = miner(embeddings, classes_of) if miner else None
        value = criterion(embeddings, classes_of, mined)
        torch.autograd.grad(value, [embeddings, *weights])
        return float(value.detach())

    return call


def _torch_cross_entropy(x: np.ndarray, labels: np.ndarray, params: Any) -> Callable[[], Any]:
    import torch

    tensors = x, np.array(params["kernel"]).T, np.array(params["bias"])
    embeddings, kernel, bias = (torch.tensor(each, requires_grad=True) for each in tensors)
    classes_of = torch.as_tensor(labels)

    def call() -> float:
        value = torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(embeddings, kernel, bias), classes_of
        )
        torch.autograd.grad(value, [embeddings, kernel, bias])
        return float(value.detach())

    return call


def rows(
    *,
    batch: int = 256,
    dim: int = 128,
    classes: int = 11_318,
    per_class: int = 4,
    repeats: int = 15,
) -> Iterator[dict[str, Any]]:
    """One `timing.row` per case.

    Raises:
      AssertionError: the two values differ.
    """
    x, labels = inputs(batch, dim, classes, per_class)
    older, labels_of_older = inputs(MEMORY, dim, classes, 1, seed=1)
    older /= np.linalg.norm(older, axis=1, keepdims=True)
    for case, chosen in CASES.items():
        config = baseline.make_config(case.split()[0], chosen, embedding_dim=dim)
        criterion = baseline.Criterion(config.options, classes, dim)
        params, _ = functional.init(criterion, jax.random.key(0), functional.struct(1, dim))
        past = {"embeddings": older, "labels": labels_of_older} if "memory" in case else None
        mine = ours(x, labels, params, past, criterion)
        other = timing.installed(theirs, x, labels, params, past, classes, case)
        if other and case not in OTHER_VALUE:
            np.testing.assert_allclose(mine(), other(), rtol=1e-3, err_msg=case)
        sizes = f"B={batch}, D={dim}" + (f", C={classes}" if params else "")
        yield timing.row(f"{case}, {sizes}", mine, other, repeats)
