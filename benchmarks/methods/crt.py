"""CRT: the peer follows the equations as printed and stores the residuals of all positions to all
prototypes, K×HW×L numbers per image."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timing import Row, installed, row
from dml_jax.backbones import functional
from dml_jax.methods.crt import method as crt

CASES = (("CUB, N=16, 7×7×2,048, K=64", 16, 49, 2048, crt.Config()),)
TRAINING_CASES = ("cub_crt,bfloat16",)


def ours(samples: int, positions: int, channels: int, config: crt.Config) -> Callable[[], Any]:
    """A call that computes the loss and its gradients with respect to feature maps and
    parameters."""
    key, branches = jax.random.key(0), crt.Branches(config)
    params, _ = functional.init(branches, key, functional.struct(1, positions, channels))
    features = jax.random.uniform(key, (samples, positions, channels))
    labels = jnp.arange(samples) // 4

    def loss(params: Any, features: jax.Array) -> Any:
        embeddings = branches.apply({"params": params}, features)
        return crt.loss(crt.own_prototypes(params), embeddings, labels, config)

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    return lambda: jax.block_until_ready(gradient(params, features))


def theirs(samples: int, positions: int, channels: int, config: crt.Config) -> Callable[[], Any]:
    """The same call in PyTorch."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    count, width, options = config.prototypes[0], config.hidden_dim, config.multi_similarity
    leaf = lambda *shape, fan: ((torch.rand(*shape) * 2 - 1) * fan**-0.5).requires_grad_()  # noqa: E731
    features = torch.rand(samples, positions, channels).requires_grad_()
    prototypes = leaf(count, channels, fan=channels)
    first, shift = leaf(count, channels, width, fan=channels), leaf(count, width, fan=channels)
    outputs = [
        (leaf(count, width, d, fan=width), leaf(count, d, fan=width)) for d in config.embedding_dims
    ]
    labels = torch.arange(samples) // 4
    same = labels[:, None] == labels[None, :]
    own = torch.eye(samples, dtype=torch.bool)
    leaves = [features, prototypes, first, shift, *(each for pair in outputs for each in pair)]

    def multi_similarity(s: Any) -> Any:
        positive, negative = same & ~own & (s < 1 - 1e-5), ~same
        hardest = torch.where(negative, s, -torch.inf).amax(1, keepdim=True)
        easiest = torch.where(positive, s, torch.inf).amin(1, keepdim=True)
        positive, negative = (
            positive & (s - options.epsilon < hardest),
            negative & (s + options.epsilon > easiest),
        )
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


def rows() -> Iterator[Row]:
    for case, *sizes in CASES:
        yield row(f"CRT, {case}", ours(*sizes), installed(theirs, *sizes), 10)
