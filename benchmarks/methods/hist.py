"""HIST: both use the Mahalanobis distance as matrix products.

The authors' own code holds N×C×D tensors and is slower still.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timing import Row, installed, row
from dml_jax.backbones import functional
from dml_jax.methods.hist import method as hist

CASES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("CUB, N=32, D=512, C=100", 32, 100, {"tau": 32.0, "alpha": 1.1}),
    ("SOP, N=32, D=512, C=11,318", 32, 11_318, {"tau": 16.0, "alpha": 2.0}),
)
CLASSES, DIM, TAU, ALPHA = 98, 512, 32.0, 0.9  # of configs/cars_hist.py


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


def training(precision: str, batch: int, compiled: bool) -> Callable[[int], None]:
    """A function that takes a number of training steps in torch, with frozen batch norms."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from benchmarks.torch_networks import ResNet50, normalise

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = (
        precision == "tensorfloat32"
    )
    body = ResNet50().to(device, memory_format=torch.channels_last).eval()
    embedding, theta, output = nn.Linear(2048, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, CLASSES)
    layers = nn.ModuleList([embedding, theta, output, nn.BatchNorm1d(DIM)]).to(device)
    means, log_vars = (
        nn.Parameter(0.1 * torch.randn(CLASSES, DIM, device=device)) for _ in range(2)
    )
    labels = torch.arange(batch, device=device) // 4 % CLASSES
    own = labels[:, None] == labels.unique()[None, :]
    parameters = [*body.parameters(), *layers.parameters(), means, log_vars]
    optimizer = torch.optim.Adam(parameters, 1e-4, weight_decay=1e-4, fused=device.type == "cuda")
    images = torch.randint(0, 256, (batch, 224, 224, 3), dtype=torch.uint8, device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            features = body(normalise(images).contiguous(memory_format=torch.channels_last))
        features = features.float()
        x = F.layer_norm(embedding(features.mean((2, 3)) + features.amax((2, 3))), (DIM,))
        e, m, inverse = F.normalize(x), F.normalize(means), torch.exp(-F.relu6(log_vars))
        d = (e * e) @ inverse.T - 2 * e @ (m * inverse).T + (m * m * inverse).sum(1)
        # The classes of the batch are the first ones.
        near = torch.exp(-ALPHA * d[:, : own.shape[1]])
        h = torch.where(own, torch.ones_like(near), near)
        vertex = h.sum(1).rsqrt()[:, None]
        g = (vertex * h / h.sum(0)) @ (vertex * h).T
        hidden = F.leaky_relu(layers[3](g @ theta(x)), 0.1)
        return F.cross_entropy(-TAU * d, labels) + F.cross_entropy(g @ output(hidden), labels)

    objective = torch.compile(loss) if compiled else loss

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            value = objective()
            value.backward()
            optimizer.step()
        assert torch.isfinite(value).item()

    return run


TRAINING_CASES = (
    "cars_hist,float32",
    "cars_hist,tensorfloat32",
    "cars_hist,bfloat16",
    "cars_hist,bfloat16,128",
)
TRAINING_PEERS = {"cars_hist": training}
