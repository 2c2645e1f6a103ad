"""Batch normalisation that matches PyTorch's to rounding."""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from dml_jax.backbones.contract import Config
from dml_jax.backbones.convolution import devices_of, is_plain
from dml_jax.backbones.layers import Conv
from dml_jax.config.fields import Mark, Probability, Rules, section
from dml_jax.numerics import at_least_float32


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def standardize(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    statistics: tuple[jax.Array, jax.Array] | None,
    epsilon: float,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Batch normalisation over all but the last axis, with `statistics` (mean, variance), or with
    those of the batch.

    x [B, ..., C] -> (result, mean [C], biased variance [C]). Gradients flow through the result
    only, and not to `statistics`. If a mesh splits x, its devices exchange statistics once in each
    direction.
    """
    if statistics is None:
        shift, offset, var = _over(mesh, _gathered_statistics, x) if mesh else _statistics(x)
        mean = shift + offset
    else:
        mean, var = statistics
    factor = jax.lax.rsqrt(var + epsilon) * scale
    return (x - _row(mean, x)) * _row(factor, x) + _row(bias, x), mean, var


def _statistics(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Two parts of the mean, and the biased variance, in one pass over x.

    E[d^2] - E[d]^2 of d = x - s cancels when the mean is far from s, so s is the mean of the first
    of the B samples: then E[d]^2 <= B var, and the variance loses at most log2(B) bits.
    """
    rows = x.reshape(-1, x.shape[-1])
    shift = rows[: len(rows) // len(x)].mean(axis=0)
    offsets = rows - shift[None]
    offset, square = (total / len(rows) for total in _sums(offsets, jnp.square(offsets)))
    return shift, offset, jnp.maximum(square - jnp.square(offset), 0.0)


def _sums(*terms: jax.Array) -> tuple[jax.Array, ...]:
    """Sums arrays [..., C] of equal shape over all but the last axis, to [C] each."""

    def on_cpu(*terms: jax.Array) -> tuple[jax.Array, ...]:
        # XLA would compute the terms once per sum; this single reduction is vectorised.
        channels = terms[0].shape[-1]
        group_size = math.gcd(terms[0].size // channels, 8)
        groups = [term.reshape(-1, group_size, channels) for term in terms]
        zeros = [np.zeros((), term.dtype) for term in terms]
        partial_sums = jax.lax.reduce(groups, zeros, lambda a, b: list(map(jnp.add, a, b)), (1,))
        return tuple(sums.sum(axis=0) for sums in partial_sums)

    def default(*terms: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(term.sum(axis=tuple(range(term.ndim - 1))) for term in terms)

    return jax.lax.platform_dependent(*terms, cpu=on_cpu, default=default)


def _gathered_statistics(axis: str, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`_statistics` over devices with the same number of rows (Chan, Golub & LeVeque, 1983)."""
    shift, offset, var = jnp.moveaxis(jax.lax.all_gather(jnp.stack(_statistics(x)), axis), 1, 0)
    offsets = shift - shift[:1] + offset
    offset = offsets.mean(axis=0)
    return shift[0], offset, (var + jnp.square(offsets - offset[None])).mean(axis=0)


def _over(mesh: Mesh, function: Callable[..., Any], *arrays: jax.Array) -> Any:
    """`function(axis, *arrays)` on each device: its rows of arrays [B, ..., C]; vectors [C]."""
    (axis,) = mesh.axis_names
    everywhere = PartitionSpec()
    partitions = tuple(PartitionSpec(axis) if array.ndim > 1 else everywhere for array in arrays)
    specs: dict[str, Any] = {"in_specs": partitions, "out_specs": everywhere, "check_vma": False}
    return jax.shard_map(partial(function, axis), mesh=mesh, **specs)(*arrays)


def _row(vector: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.expand_dims(vector, tuple(range(x.ndim - 1)))


def _standardize_forward(*arguments: Any) -> tuple[Any, tuple[Any, ...]]:
    x, scale, _, statistics, epsilon, _ = arguments
    # Not `standardize`: second derivatives must include those of the batch's statistics.
    results = standardize.fun(*arguments)
    return results, (x, scale, statistics, results[1], jax.lax.rsqrt(results[2] + epsilon))


def _standardize_backward(
    _: float, mesh: Mesh | None, saved: tuple[Any, ...], gradients: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    (x, scale, statistics, mean, factor), grad = saved, gradients[0]

    arrays = x, grad, mean, factor

    def sums(x: jax.Array, grad: jax.Array, mean: jax.Array, factor: jax.Array) -> Any:
        return _sums(grad * ((x - _row(mean, x)) * _row(factor, x)), grad)

    def summed(axis: str, *arrays: jax.Array) -> jax.Array:
        return jax.lax.psum(jnp.stack(sums(*arrays)), axis)

    scale_grad, bias_grad = _over(mesh, summed, *arrays) if mesh else sums(*arrays)
    if statistics is None:
        scaled = (x - _row(mean, x)) * _row(factor * scale_grad, x)
        grad = grad - (_row(bias_grad, x) + scaled) / (x.size // x.shape[-1])
    return _row(scale * factor, x) * grad, scale_grad, bias_grad, None


standardize.defvjp(_standardize_forward, _standardize_backward)


class BatchNorm(nn.Module):
    """Batch normalisation over all but the last axis, like torch.nn.BatchNorm1d and BatchNorm2d.

    Normalises with the biased variance and stores the unbiased variance, in at least float32.
    """

    momentum: float = 0.1  # weight of the new batch in the running statistics (as in PyTorch)
    epsilon: float = 1e-5
    frozen: bool = False  # uses the running statistics in training, too, and never updates them
    updates: int = 1  # updates of the running statistics per batch; 2 with PyTorch's checkpointing
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, conv: Conv | None = None) -> jax.Array:
        """float [..., C] -> float [..., C]; with `conv`, normalises the result of the convolution.

        In training with running statistics, these are folded into its kernel and bias. Then the
        gradients do not need its result, and the scale's gradient is a sum over the kernel's.
        """
        channels = x.shape[-1] if conv is None else conv.features
        scale = self.param("scale", nn.initializers.ones_init(), (channels,), jnp.float32)
        bias = jnp.zeros_like(scale)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (channels,), jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        by_batch = train and not self.frozen
        statistics = None if by_batch else (running_mean.value, running_var.value)
        if conv is not None and train and self.frozen:
            factor = jax.lax.rsqrt(running_var.value + self.epsilon) * scale
            return conv(x, factor, bias - running_mean.value * factor)
        x = x if conv is None else conv(x)
        wide = at_least_float32(x)
        # Only for maps: methods may replicate vectors on every device.
        mesh = devices_of(x) if train and x.ndim == 4 else None
        normalise = standardize.fun if is_plain() else standardize
        result, mean, var = normalise(wide, scale, bias, statistics, self.epsilon, mesh)
        if by_batch and not self.is_initializing():
            count = x.size // channels
            keep = (1.0 - self.momentum) ** self.updates
            unbiased = var * (count / max(count - 1, 1))
            for running, new in ((running_mean, mean), (running_var, unbiased)):
                updated = keep * running.value + (1.0 - keep) * new
                running.value = updated.astype(running.value.dtype)
        return result.astype(x.dtype)


@section
class ConvolutionalConfig(Config):
    """Options of all networks with batch normalisation.

    Attributes:
      freeze_bn: Normalises with the running statistics in training, too, and never updates them.
      bn_momentum: Weight of the new batch in the running statistics, as in PyTorch; some papers use
        0.9.
    """

    freeze_bn: Annotated[bool, Mark.TRAINING] = False
    bn_momentum: Annotated[Probability, Mark.TRAINING] = 0.1

    def inert(self, config: Any) -> Rules:
        """When options have an effect; see `config.fields.inert`."""
        group = config.train.groups.get("backbone")
        remedy = "backbone.freeze_bn=false, and the whole backbone trained"
        updated = not (self.freeze_bn or (group and group.freeze))
        return ((updated, f"running statistics that are updated: {remedy}", "bn_momentum"),)

    def doubtful(self, config: Any) -> Rules:
        """Frozen statistics need pretrained weights; see `config.fields.doubtful`."""
        has_statistics = not self.freeze_bn or self.pretrained != "none" or config.init_from
        problem = "the running statistics of a network without pretrained weights do not normalise"
        remedy = "set it to false, or set backbone.pretrained or init_from"
        return ((has_statistics, f"{problem}; {remedy}", "freeze_bn"),)


def batch_norm(
    config: ConvolutionalConfig, name: str, *, epsilon: float = 1e-5, updates: int = 1
) -> BatchNorm:
    """Batch normalisation with the options of a network's configuration."""
    return BatchNorm(config.bn_momentum, epsilon, config.freeze_bn, updates, name=name)
