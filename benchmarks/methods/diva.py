"""DiVA: the peer samples triplets as published distance-weighted miners do, anchor by anchor in
NumPy; everything else is dense."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import Row, installed, row
from dml_jax.methods import diva
from dml_jax.methods.diva import equations

TRAINING_CASES = ("cub_diva,bfloat16",)


def inputs(batch: int, dim: int, queue: int, classes: int, seed: int = 0) -> dict[str, Any]:
    """Unit embeddings of a batch with two samples per class, keys close to them, and a queue;
    float32 NumPy."""
    rng = np.random.default_rng(seed)

    def directions(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape).astype(np.float32)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    labels = np.repeat(rng.choice(classes, batch // 2, replace=False), 2)
    embeddings = {task: directions(batch, dim) for task in diva.TASKS}
    keys = embeddings["selfsimilarity"] + 0.02 * rng.normal(size=(batch, dim)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    return {
        "embeddings": embeddings,
        "labels": labels,
        "keys": keys,
        "queue": directions(queue, dim),
    }


def ours(data: dict[str, Any], config: diva.Config, classes: int) -> Callable[[], Any]:
    """A call that mines triplets and computes the loss and its gradients."""
    params = equations.loss_init(jax.random.key(0), config, classes)
    embeddings = {task: jnp.asarray(x) for task, x in data["embeddings"].items()}
    labels, keys, queue = (jnp.asarray(data[name]) for name in ("labels", "keys", "queue"))

    def loss(
        params: Any, embeddings: Any, key: jax.Array, keys: jax.Array, queue: jax.Array
    ) -> jax.Array:
        triplets = equations.mine(key, embeddings, labels, config)
        return equations.loss(params, embeddings, labels, triplets, keys, queue, config)[0]

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1)))
    count = iter(range(1_000_000))
    return lambda: jax.block_until_ready(
        gradient(params, embeddings, jax.random.key(next(count)), keys, queue)
    )


def theirs(data: dict[str, Any], config: diva.Config, classes: int) -> Callable[[], Any]:
    """The same call in PyTorch."""
    import torch
    from torch.nn import functional as F

    dim, tau = config.embedding_dim, config.temperature
    labels = torch.as_tensor(data["labels"])
    keys, queue = torch.as_tensor(data["keys"]), torch.as_tensor(data["queue"])
    embeddings = {t: torch.tensor(x, requires_grad=True) for t, x in data["embeddings"].items()}
    ranked = ("discriminative", "shared", "intra")
    betas = {task: torch.full((classes,), config.beta, requires_grad=True) for task in ranked}
    psis = [
        torch.nn.Sequential(
            torch.nn.Linear(dim, config.psi_dim),
            torch.nn.ReLU(),
            torch.nn.Linear(config.psi_dim, dim),
        )
        for _ in range(3)
    ]
    leaves = [*embeddings.values(), *betas.values(), *(p for psi in psis for p in psi.parameters())]

    def log_density(d: Any) -> Any:
        return (2 - dim) * torch.log(d) - (dim - 3) / 2 * torch.log(1 - 0.25 * d * d)

    def mined(x: Any, y: Any) -> np.ndarray:
        distances = torch.cdist(x.detach(), x.detach()).clamp(min=equations.LOWER_CUTOFF)
        triplets = []
        for anchor in range(len(y)):
            same = y == y[anchor]
            weights = log_density(distances[anchor])
            weights[same] = -torch.inf
            probability = torch.softmax(weights.double(), dim=0).numpy()
            positives = np.flatnonzero(same.numpy())
            positives = positives[positives != anchor]
            if len(positives):
                negative = np.random.choice(len(y), p=probability / probability.sum())  # noqa: NPY002
                triplets.append((anchor, np.random.choice(positives), negative))  # noqa: NPY002
        return np.asarray(triplets)

    def within(y: Any) -> np.ndarray:
        classes_here = np.unique(y.numpy())
        members = {c: np.flatnonzero(y.numpy() == c) for c in classes_here}
        chosen = np.random.choice(classes_here, len(y))  # noqa: NPY002
        return np.asarray([np.random.choice(members[c], 3) for c in chosen])  # noqa: NPY002

    def margin(x: Any, beta: Any, triplets: np.ndarray) -> Any:
        a, p, n = torch.as_tensor(triplets).T
        boundary = beta[labels[a]]
        pull = F.relu(((x[a] - x[p]).square().sum(1) + 1e-8).sqrt() - boundary + config.margin)
        push = F.relu(boundary - ((x[a] - x[n]).square().sum(1) + 1e-8).sqrt() + config.margin)
        return (pull + push).sum() / ((pull > 0) | (push > 0)).sum().clamp(min=1)

    def dance(q: Any) -> Any:
        s = q @ queue.T
        with torch.no_grad():
            d = (2 - 2 * s).clamp(min=equations.LOWER_CUTOFF**2).sqrt()
            log = log_density(d)
            e = torch.exp(log - log.max())
            e = torch.where(d > equations.UPPER_CUTOFF, torch.zeros(()), e).clamp(min=1e-37)
            w = e / e.sum(0, keepdim=True)
        logits = torch.cat([(q * keys).sum(1, keepdim=True), w * s], dim=1) / tau
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))

    def call() -> Any:
        for leaf in leaves:
            leaf.grad = None
        triplets = {
            "discriminative": mined(embeddings["discriminative"], labels),
            "shared": mined(embeddings["shared"], labels[torch.randperm(len(labels))]),
            "intra": within(labels),
        }
        alpha = {"discriminative": 1.0, "shared": config.alpha_shared, "intra": config.alpha_intra}
        loss = sum(
            alpha[t] * margin(embeddings[t], betas[t], chosen) for t, chosen in triplets.items()
        )
        loss = loss + config.alpha_selfsimilarity * dance(embeddings["selfsimilarity"])
        reversed_ = {t: F.normalize(2 * x.detach() - x, dim=1) for t, x in embeddings.items()}
        for psi, task in zip(psis, diva.TASKS[1:], strict=True):
            mapped = F.normalize(psi(reversed_[task]), dim=1)
            loss = loss - config.rho[0] * (reversed_["discriminative"] * mapped).square().mean()
        loss.backward()
        return loss

    return call


def rows() -> Iterator[Row]:
    parts = inputs(112, 128, 3360, 100), diva.Config(embedding_dim=128), 100
    case = "DiVA loss with mining, B=112, D=128, queue 3360, 4 tasks"
    yield row(case, ours(*parts), installed(theirs, *parts))
