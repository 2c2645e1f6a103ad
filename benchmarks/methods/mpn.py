"""MPN: its network and losses with dropout, with the sizes of the authors' CUB, In-Shop, Cars196
and SOP runs."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timing import Row, installed, row
from dml_jax.backbones import functional
from dml_jax.backbones.layers import Dense
from dml_jax.methods.mpn import method as mpn

# case, nodes, classes, options
CASES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("CUB, 54 nodes, 1 layer, 2 heads, C=100", 54, 100, {"layers": 1, "heads": 2}),
    ("In-Shop, 56 nodes, 1 layer, 4 heads, C=3,997", 56, 3997, {"layers": 1, "heads": 4}),
    (
        "Cars196, 70 nodes, 2 layers, 8 heads, C=98",
        70,
        98,
        {"layers": 2, "heads": 8, "concatenate": True},
    ),
    ("SOP, 90 nodes, 1 layer, 8 heads, C=11,318", 90, 11318, {"layers": 1, "heads": 8}),
)
TRAINING_CASES = ("cub_mpn,bfloat16",)


def ours(nodes: int, classes: int, config: mpn.Config) -> Callable[[], Any]:
    """A call that computes both losses and their gradients with respect to embeddings and
    parameters."""
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


def theirs(nodes: int, classes: int, config: mpn.Config) -> Callable[[], Any]:
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
        return F.cross_entropy(
            logits / config.temperature, labels, label_smoothing=config.smoothing
        )

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


def rows() -> Iterator[Row]:
    for case, nodes, classes, options in CASES:
        given = nodes, classes, mpn.Config(embedding_dim=512, **options)
        yield row(f"MPN heads and losses, {case}", ours(*given), installed(theirs, *given))
