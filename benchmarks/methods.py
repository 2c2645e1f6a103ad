"""The papers' losses, forward and backward, compared with independent PyTorch versions on the same number of threads.

MPN: its network and losses with dropout, with the sizes of the authors' CUB, In-Shop, Cars196 and Stanford Online
Products runs; and batches of reciprocal neighbours compared with NumPy, one query at a time as in published code.
HIST: both use the Mahalanobis distance as matrix products; the authors' own code holds N×C×D tensors and is slower
still. CRT: the peer follows the equations as printed and materializes the residuals of all positions to all prototypes,
K×HW×L numbers per image. DiVA: the peer samples triplets as published distance-weighted miners do, anchor by anchor in
NumPy; everything else is dense. The peers raise ImportError if torch is not installed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import Row, installed, row
from dml_jax.backbones import functional
from dml_jax.backbones.layers import Dense
from dml_jax.evaluation import refinement_batches
from dml_jax.methods import crt, diva, hist, mpn
from dml_jax.methods.diva import equations

# case, nodes, classes, options
MPN_CASES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("CUB, 54 nodes, 1 layer, 2 heads, C=100", 54, 100, {"layers": 1, "heads": 2}),
    ("In-Shop, 56 nodes, 1 layer, 4 heads, C=3,997", 56, 3997, {"layers": 1, "heads": 4}),
    ("Cars196, 70 nodes, 2 layers, 8 heads, C=98", 70, 98, {"layers": 2, "heads": 8, "concatenate": True}),
    ("SOP, 90 nodes, 1 layer, 8 heads, C=11,318", 90, 11318, {"layers": 1, "heads": 8}),
)


def mpn_ours(nodes: int, classes: int, config: mpn.Config) -> Callable[[], Any]:
    """A call that computes both losses and their gradients with respect to embeddings and parameters."""
    key, x = jax.random.key(0), functional.struct(nodes, config.embedding_dim)
    network = mpn.MessagePassingNetwork(config, classes)
    params, stats = functional.init(network, key, x, False)
    params = {"mpn": params, "auxiliary": functional.init(Dense(classes), key, x)[0]}
    embeddings = jax.random.normal(key, (nodes, config.embedding_dim))
    labels = jnp.arange(nodes) % classes

    def loss(params: Any, embeddings: jax.Array, key: jax.Array) -> Any:
        return mpn.loss(params, stats, embeddings, labels, network, key)

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    count = iter(range(1_000_000))
    return lambda: jax.block_until_ready(gradient(params, embeddings, jax.random.key(next(count))))


def mpn_theirs(nodes: int, classes: int, config: mpn.Config) -> Callable[[], Any]:
    """The same call in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    d, heads, rate = config.embedding_dim, config.heads, config.dropout

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.ff1, self.ff2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).view(len(x), 3, heads, d // heads).permute(1, 2, 0, 3)
            scores = q @ k.transpose(1, 2) / (d // heads) ** 0.5
            weights = torch.softmax(F.pad(scores, (0, 1)), dim=-1)[..., :-1]
            message = (F.dropout(weights, rate) @ v).transpose(0, 1).reshape(len(x), d)
            x = self.norm1(x + F.dropout(self.out(message), rate))
            hidden = F.dropout(F.relu(self.ff1(x)), rate)
            return self.norm2(x + F.dropout(self.ff2(hidden), rate))

    width = d * (config.layers if config.concatenate else 1)
    layers = nn.ModuleList(Layer() for _ in range(config.layers))
    auxiliary, projection = nn.Linear(d, classes), nn.Linear(d, d)
    neck, classifier = nn.BatchNorm1d(width), nn.Linear(width, classes, bias=False)
    neck.bias.requires_grad_(False)
    modules = nn.ModuleList([layers, auxiliary, projection, neck, classifier])
    embeddings = torch.randn(nodes, d, requires_grad=True)
    labels = torch.arange(nodes) % classes

    def smoothed(logits: Any) -> Any:
        return F.cross_entropy(logits / config.temperature, labels, label_smoothing=config.smoothing)

    def call() -> Any:
        embeddings.grad = None
        for parameter in modules.parameters():
            parameter.grad = None
        x, outputs = projection(F.normalize(embeddings)), []
        for layer in layers:
            x = layer(x)
            outputs.append(x)
        refined = torch.cat(outputs, dim=1) if config.concatenate else x
        loss = smoothed(auxiliary(embeddings)) + smoothed(classifier(neck(refined)))
        loss.backward()
        return loss

    return call


def reciprocal_batches(embeddings: np.ndarray, k: int, size: int) -> np.ndarray:
    """Batches of reciprocal neighbours from the full ranking, with set operations for one query at a time."""
    squares = np.sum(embeddings**2, axis=1)
    distances = squares[:, None] + squares[None] - 2 * embeddings @ embeddings.T
    ranking = np.argsort(distances, axis=1)

    def mutual(q: int, k: int) -> np.ndarray:
        near = ranking[q, : k + 1]
        return near[(ranking[near, : k + 1] == q).any(axis=1)]

    halves = [mutual(q, round(k / 2)) for q in range(len(embeddings))]
    batches = []
    for q in range(len(embeddings)):
        original = mutual(q, k)
        parts = [h for h in (halves[g] for g in original) if 3 * len(np.intersect1d(h, original)) > 2 * len(h)]
        expanded = np.unique(np.concatenate([original, *parts]))
        nearest = expanded[np.argsort(distances[q, expanded])][:size]
        others = ranking[q, : 2 * size]
        batches.append(np.concatenate([nearest, others[~np.isin(others, nearest)]])[:size])
    return np.asarray(batches)


def clustered(rows: int, dim: int, classes: int = 100) -> np.ndarray:
    """Unit float32 rows around class centres."""
    rng = np.random.default_rng(0)
    points = 0.7 * rng.normal(size=(classes, dim))[np.arange(rows) % classes] + rng.normal(size=(rows, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


HIST_CASES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("CUB, N=32, D=512, C=100", 32, 100, {"tau": 32.0, "alpha": 1.1}),
    ("SOP, N=32, D=512, C=11,318", 32, 11_318, {"tau": 16.0, "alpha": 2.0}),
)


def hist_ours(samples: int, classes: int, config: hist.Config) -> Callable[[], Any]:
    """One call: the loss and the gradients of embeddings and parameters."""
    key, x = jax.random.key(0), functional.struct(samples, config.embedding_dim)
    g = jax.eval_shape(hist.propagation, functional.struct(samples, samples), functional.struct(samples))
    network, nested = functional.init(hist.HypergraphNetwork(classes, config), key, x, g, True)
    stats = {block: values["bn"] for block, values in nested.items()}
    params = {"distributions": functional.init(hist.Distributions(classes, config), key, x)[0], "hgnn": network}
    embeddings = jax.random.normal(key, (samples, config.embedding_dim))
    labels = jnp.arange(samples) // 2 % classes

    def loss(params: Any, embeddings: jax.Array) -> Any:
        return hist.loss(params, stats, embeddings, labels, config)

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    return lambda: jax.block_until_ready(gradient(params, embeddings))


def hist_theirs(samples: int, classes: int, config: hist.Config) -> Callable[[], Any]:
    """The same call in torch."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    dim = config.embedding_dim
    leaf = lambda *shape, scale=1.0: (torch.randn(*shape) * scale).requires_grad_()  # noqa: E731
    x, means, log_vars = leaf(samples, dim), leaf(classes, dim, scale=0.1), leaf(classes, dim, scale=0.1)
    first, norm = torch.nn.Linear(dim, config.hidden_dim), torch.nn.BatchNorm1d(config.hidden_dim)
    last = torch.nn.Linear(config.hidden_dim, classes)
    labels = torch.arange(samples) // 2 % classes
    leaves = [x, means, log_vars, *first.parameters(), *norm.parameters(), *last.parameters()]

    def call() -> Any:
        for each in leaves:
            each.grad = None
        e, m = F.normalize(x, dim=1), F.normalize(means, dim=1)
        p = torch.exp(-F.relu6(log_vars))
        d = (e * e) @ p.T - 2 * e @ (m * p).T + (m * m * p).sum(1)
        loss = F.cross_entropy(-config.tau * d, labels)
        present = labels.unique()
        own = labels[:, None] == present[None, :]
        h = torch.where(own, torch.ones(()), torch.exp(-config.alpha * d[:, present]))
        vertex, edge = h.sum(1).rsqrt(), 1 / h.sum(0)
        g = (vertex[:, None] * h * edge) @ (h.T * vertex)
        hidden = F.leaky_relu(norm(g @ first(x)), 0.1)
        loss = loss + config.lambda_s * F.cross_entropy(g @ last(hidden), labels)
        loss.backward()
        return loss

    return call


CRT_CASES = (("CUB, N=16, 7×7×2,048, K=64", 16, 49, 2048, crt.Config()),)


def crt_ours(samples: int, positions: int, channels: int, config: crt.Config) -> Callable[[], Any]:
    """A call that computes the loss and its gradients with respect to feature maps and parameters."""
    key, branches = jax.random.key(0), crt.Branches(config)
    params, _ = functional.init(branches, key, functional.struct(1, positions, channels))
    features = jax.random.uniform(key, (samples, positions, channels))
    labels = jnp.arange(samples) // 4

    def loss(params: Any, features: jax.Array) -> Any:
        embeddings = branches.apply({"params": params}, features)
        return crt.loss(crt.own_prototypes(params), embeddings, labels, config)

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    return lambda: jax.block_until_ready(gradient(params, features))


def crt_theirs(samples: int, positions: int, channels: int, config: crt.Config) -> Callable[[], Any]:
    """The same call in PyTorch."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    count, width, options = config.prototypes[0], config.hidden_dim, config.multi_similarity
    leaf = lambda *shape, fan: ((torch.rand(*shape) * 2 - 1) * fan**-0.5).requires_grad_()  # noqa: E731
    features = torch.rand(samples, positions, channels).requires_grad_()
    prototypes = leaf(count, channels, fan=channels)
    first, shift = leaf(count, channels, width, fan=channels), leaf(count, width, fan=channels)
    outputs = [(leaf(count, width, d, fan=width), leaf(count, d, fan=width)) for d in config.embedding_dims]
    labels = torch.arange(samples) // 4
    same = labels[:, None] == labels[None, :]
    own = torch.eye(samples, dtype=torch.bool)
    leaves = [features, prototypes, first, shift, *(each for pair in outputs for each in pair)]

    def multi_similarity(s: Any) -> Any:
        positive, negative = same & ~own & (s < 1 - 1e-5), ~same
        hardest = torch.where(negative, s, -torch.inf).amax(1, keepdim=True)
        easiest = torch.where(positive, s, torch.inf).amin(1, keepdim=True)
        positive, negative = positive & (s - options.epsilon < hardest), negative & (s + options.epsilon > easiest)
        pull = torch.where(positive, torch.exp(-options.alpha * (s - options.base)), 0.0).sum(1)
        push = torch.where(negative, torch.exp(options.beta * (s - options.base)), 0.0).sum(1)
        return (torch.log1p(pull) / options.alpha + torch.log1p(push) / options.beta).mean()

    def call() -> Any:
        for each in leaves:
            each.grad = None
        weights = F.softplus(features @ prototypes.T)
        residuals = features[:, None] - prototypes[None, :, None]
        r = (weights.transpose(1, 2)[..., None] * residuals).sum(2)
        hidden = F.gelu(torch.einsum("nkl,klh->nkh", r, first) + shift)
        similarities = []
        unit = F.normalize(prototypes, dim=1)
        correlation = (unit @ unit.T).abs()
        loss = config.w_div * (correlation.sum() - correlation.trace()) / (count * (count - 1))
        for weight, (kernel, bias) in zip(config.lambda1, outputs, strict=True):
            f = F.normalize((torch.einsum("nkh,khd->nkd", hidden, kernel) + bias).mean(1), dim=1)
            similarities.append(f @ f.T)
            loss = loss + weight * multi_similarity(similarities[-1])
        loss = loss + config.lambda2 * (similarities[0] - similarities[1]).abs().mean()
        loss.backward()
        return loss

    return call


def diva_inputs(batch: int, dim: int, queue: int, classes: int, seed: int = 0) -> dict[str, Any]:
    """Unit embeddings of a batch with two samples per class, keys close to them, and a queue; float32 NumPy."""
    rng = np.random.default_rng(seed)

    def directions(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape).astype(np.float32)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    labels = np.repeat(rng.choice(classes, batch // 2, replace=False), 2)
    embeddings = {task: directions(batch, dim) for task in diva.TASKS}
    keys = embeddings["selfsimilarity"] + 0.02 * rng.normal(size=(batch, dim)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    return {"embeddings": embeddings, "labels": labels, "keys": keys, "queue": directions(queue, dim)}


def diva_ours(data: dict[str, Any], config: diva.Config, classes: int) -> Callable[[], Any]:
    """A call that mines triplets and computes the loss and its gradients."""
    params = equations.loss_init(jax.random.key(0), config, classes)
    embeddings = {task: jnp.asarray(x) for task, x in data["embeddings"].items()}
    labels, keys, queue = (jnp.asarray(data[name]) for name in ("labels", "keys", "queue"))

    def loss(params: Any, embeddings: Any, key: jax.Array, keys: jax.Array, queue: jax.Array) -> jax.Array:
        triplets = equations.mine(key, embeddings, labels, config)
        return equations.loss(params, embeddings, labels, triplets, keys, queue, config)[0]

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1)))
    count = iter(range(1_000_000))
    return lambda: jax.block_until_ready(gradient(params, embeddings, jax.random.key(next(count)), keys, queue))


def diva_theirs(data: dict[str, Any], config: diva.Config, classes: int) -> Callable[[], Any]:
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
        torch.nn.Sequential(torch.nn.Linear(dim, config.psi_dim), torch.nn.ReLU(), torch.nn.Linear(config.psi_dim, dim))
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
        return np.asarray([np.random.choice(members[c], 3) for c in np.random.choice(classes_here, len(y))])  # noqa: NPY002

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
        loss = sum(alpha[t] * margin(embeddings[t], betas[t], chosen) for t, chosen in triplets.items())
        loss = loss + config.alpha_selfsimilarity * dance(embeddings["selfsimilarity"])
        reversed_ = {t: F.normalize(2 * x.detach() - x, dim=1) for t, x in embeddings.items()}
        for psi, task in zip(psis, diva.TASKS[1:], strict=True):
            mapped = F.normalize(psi(reversed_[task]), dim=1)
            loss = loss - config.rho[0] * (reversed_["discriminative"] * mapped).square().mean()
        loss.backward()
        return loss

    return call


def rows() -> Iterator[Row]:
    """One row per case, see `timing.row`."""
    for case, samples, classes, options in HIST_CASES:
        given = samples, classes, hist.Config(**options)
        yield row(f"HIST, {case}", hist_ours(*given), installed(hist_theirs, *given))
    for case, nodes, classes, options in MPN_CASES:
        given = nodes, classes, mpn.Config(embedding_dim=512, **options)
        yield row(f"MPN heads and losses, {case}", mpn_ours(*given), installed(mpn_theirs, *given))
    points = clustered(5924, 512)
    yield row(
        "reciprocal-neighbour batches, 5,924 x 512, k=30, batches of 7",
        lambda: refinement_batches.reciprocal_sets(points, k=30, size=7).batches,
        lambda: reciprocal_batches(points, 30, 7),
        3,
    )
    for case, *sizes in CRT_CASES:
        yield row(f"CRT, {case}", crt_ours(*sizes), installed(crt_theirs, *sizes), 10)
    parts = diva_inputs(112, 128, 3360, 100), diva.Config(embedding_dim=128), 100
    case = "DiVA loss with mining, B=112, D=128, queue 3360, 4 tasks"
    yield row(case, diva_ours(*parts), installed(diva_theirs, *parts))
