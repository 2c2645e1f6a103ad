"""Batch normalisation, which matches PyTorch's to rounding."""

from functools import partial
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype as ArrayDtype

from dml_jax.backbones.contract import Pixels
from dml_jax.config.fields import Dtype, Probability, Rule, section
from dml_jax.numerics import at_least_float32

FreezeBatchNorm = Annotated[
    bool,
    Rule(
        "the running statistics of a network without pretrained weights do not normalise; set it to false, or give "
        "backbone.pretrained or init_from",
        lambda c: not c.backbone.freeze_bn or c.backbone.pretrained != "none" or c.init_from,
    ),
]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def standardize(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Batch normalisation with the statistics of the batch, over all but the last axis.

    Mean and variance take one pass over x. E[d^2] - E[d]^2 of d = x - s cancels when the mean is far from s, so s is
    the mean of the first of the B samples: then E[d]^2 <= B var, and the variance loses at most log2(B) bits however
    large the mean is.

    x [B, ..., C] -> (result, mean [C], biased variance [C]); gradients flow through the result only.
    """
    rows = x.reshape(-1, x.shape[-1])
    near = rows[: len(rows) // len(x)].mean(axis=0)
    offsets = rows - near[None]
    offset = offsets.mean(axis=0)
    var = jnp.maximum(jnp.square(offsets).mean(axis=0) - jnp.square(offset), 0.0)
    mean = near + offset
    result = (rows - mean[None]) * (jax.lax.rsqrt(var + epsilon) * scale)[None] + bias[None]
    return result.reshape(x.shape), mean, var


def _standardize_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]:
    result, mean, var = standardize(x, scale, bias, epsilon)
    return (result, mean, var), (x, scale, mean, jax.lax.rsqrt(var + epsilon))


def _standardize_backward(
    _: float, saved: tuple[jax.Array, ...], gradients: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, mean, factor = saved
    grad, centred = (rows.reshape(-1, x.shape[-1]) for rows in (gradients[0], x))
    centred = centred - mean[None]
    bias_grad = grad.sum(axis=0)
    scale_grad = (grad * (centred * factor[None])).sum(axis=0)
    through_statistics = (bias_grad[None] + centred * (factor * scale_grad)[None]) / len(grad)
    x_grad = (scale * factor)[None] * (grad - through_statistics)
    return x_grad.reshape(x.shape), scale_grad, bias_grad


standardize.defvjp(_standardize_forward, _standardize_backward)


class BatchNorm(nn.Module):
    """Batch normalisation over all but the last axis, like torch.nn.BatchNorm1d and BatchNorm2d.

    Normalises with the biased variance and keeps the unbiased one. Statistics are computed in at least float32.
    """

    # Weight of the new batch in the running statistics (PyTorch's convention; Flax's is one minus it).
    momentum: float = 0.1
    epsilon: float = 1e-5
    frozen: bool = False  # uses the running statistics in training too, and never updates them
    # Keeps scale and bias among the statistics instead of the parameters, so nothing trains or decays them.
    fixed: bool = False
    # How often one batch updates the running statistics (gradient checkpointing in PyTorch does it twice).
    updates: int = 1
    use_bias: bool = True
    dtype: ArrayDtype | None = None  # the result's; None for that of the input

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [..., C] -> float [..., C]."""
        channels = x.shape[-1]
        if self.fixed:
            scale = self.variable("batch_stats", "scale", jnp.ones, (channels,), jnp.float32).value
            bias = self.variable("batch_stats", "bias", jnp.zeros, (channels,), jnp.float32).value
        else:
            scale = self.param("scale", nn.initializers.ones_init(), (channels,), jnp.float32)
            bias = jnp.zeros_like(scale)
            if self.use_bias:
                bias = self.param("bias", nn.initializers.zeros_init(), (channels,), jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        wide = at_least_float32(x)
        if train and not self.frozen:
            result, mean, var = standardize(wide, scale, bias, self.epsilon)
            if not self.is_initializing():
                count = x.size // channels
                keep = (1.0 - self.momentum) ** self.updates
                unbiased = var * (count / max(count - 1, 1))
                for running, new in ((running_mean, mean), (running_var, unbiased)):
                    running.value = (keep * running.value + (1.0 - keep) * new).astype(running.value.dtype)
        else:
            mean, factor, bias = (
                jnp.expand_dims(v, tuple(range(x.ndim - 1)))
                for v in (running_mean.value, jax.lax.rsqrt(running_var.value + self.epsilon) * scale, bias)
            )
            result = (wide - mean) * factor + bias
        return result.astype(self.dtype or x.dtype)


@section
class ConvolutionalConfig:
    """Options that all networks with batch normalisation have."""

    name: str = ""
    pretrained: str = "none"  # directory written by `dml-jax convert`, or "none"
    freeze_bn: FreezeBatchNorm = False  # use the running statistics in training, too, and never update them
    freeze_bn_affine: bool = False  # do not train or decay the scales and biases of batch norms
    # Weight of the new batch in the running statistics (PyTorch's convention); 0.9 with BN-Inception in Proxy-Anchor's
    # code and HIST's.
    bn_momentum: Probability = 0.1
    pixels: Pixels = Pixels()
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well


def batch_norm(config: ConvolutionalConfig, name: str, *, epsilon: float = 1e-5, updates: int = 1) -> BatchNorm:
    """A batch normalisation with the options of a network's configuration."""
    return BatchNorm(config.bn_momentum, epsilon, config.freeze_bn, config.freeze_bn_affine, updates, name=name)
