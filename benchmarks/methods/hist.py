"""HIST: both use the Mahalanobis distance as matrix products.

The authors' own code holds N×C×D tensors and is slower still.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timing import Row, installed, row
from dml_jax.backbones import functional
from dml_jax.methods import hist

CASES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("CUB, N=32, D=512, C=100", 32, 100, {"tau": 32.0, "alpha": 1.1}),
    ("SOP, N=32, D=512, C=11,318", 32, 11_318, {"tau": 16.0, "alpha": 2.0}),
)


def ours(samples: int, classes: int, config: hist.Config) -> Callable[[], Any]:
    """One call: the loss and the gradients of embeddings and parameters."""
    key, x = jax.random.key(0), functional.struct(samples, config.embedding_dim)
    g = jax.eval_shape(
        hist.propagation, functional.struct(samples, samples), functional.struct(samples)
    )
    network, nested = functional.init(hist.HypergraphNetwork(classes, config), key, x, g, True)
    stats = {block: values["bn"] for block, values in nested.items()}
    params = {
        "distributions": functional.init(hist.Distributions(classes, config), key, x)[0],
        "hgnn": network,
    }
    embeddings = jax.random.normal(key, (samples, config.embedding_dim))
    labels = jnp.arange(samples) // 2 % classes

    def loss(params: Any, embeddings: jax.Array) -> Any:
        return hist.loss(params, stats, embeddings, labels, config)

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    return lambda: jax.block_until_ready(gradient(params, embeddings))


def theirs(samples: int, classes: int, config: hist.Config) -> Callable[[], Any]:
    """The same call in torch."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    dim = config.embedding_dim
    leaf = lambda *shape, scale=1.0: (torch.randn(*shape) * scale).requires_grad_()  # noqa: E731
    x, means, log_vars = (
        leaf(samples, dim),
        leaf(classes, dim, scale=0.1),
        leaf(classes, dim, scale=0.1),
    )
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


def rows() -> Iterator[Row]:
    for case, samples, classes, options in CASES:
        given = samples, classes, hist.Config(**options)
        yield row(f"HIST, {case}", ours(*given), installed(theirs, *given))
