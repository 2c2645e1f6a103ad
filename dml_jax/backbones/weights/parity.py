"""Comparing converted weights with torch, layer by layer.

The network runs on an image, and torch computes each convolution, linear layer and norm again, from the same input
and with the tensors of the published file. This detects wrong axes, paddings, epsilons and mixed-up tensors without
torch's definition of the network.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones import convolution
from dml_jax.backbones.batch_norm import BatchNorm
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense
from dml_jax.backbones.weights.tensor_files import Tensor

Layer = nn.Conv | Dense | nn.LayerNorm | BatchNorm


class Report(NamedTuple):
    """Result of the comparison."""

    layers: int
    worst: str  # the layer with the largest deviation, by its name in the file
    deviation: float  # its largest deviation from torch, relative to its largest output
    features: np.ndarray  # float [1, h, w, K], the feature map where torch computes every layer


def compare_layers(
    backbone: Backbone,
    params: Any,
    stats: Any,
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    inputs: np.ndarray,
) -> Report:
    """Runs a backbone, and each of its layers again in torch, in float32; torch's output goes on to the next layer.

    Args:
      params, stats: the converted weights.
      tensors: the state_dict they come from, with torch's axes.
      names: "backbone/params/..." -> name in the state_dict.
      inputs: float [1, H, W, 3], a normalised image.
    """
    deviations: dict[str, float] = {}
    modules = {key.rpartition("/")[0]: name.rpartition(".")[0] for key, name in names.items()}

    def compare(call: Callable[..., Any], arguments: Any, keywords: Any, context: nn.module.InterceptorContext) -> Any:
        ours = call(*arguments, **keywords)
        layer = context.module
        if isinstance(layer, Layer) and context.method_name == "__call__":
            name = modules["/".join(("backbone/params", *layer.path))]
            theirs = _torch_output(layer, np.asarray(arguments[0]), tensors, name)
            deviation = float(np.abs(np.asarray(ours) - theirs).max() / max(np.abs(theirs).max(), 1e-30))
            deviations[name] = deviation if math.isfinite(deviation) else math.inf
            return jnp.asarray(theirs)
        return ours

    x = jnp.asarray(inputs, jnp.float32)
    with nn.intercept_methods(compare), jax.default_matmul_precision("highest"):
        features, _ = backbone.apply(params, stats, x, train=False, key=None)
    worst = max(deviations, key=lambda name: deviations[name])
    return Report(len(deviations), worst, deviations[worst], np.asarray(features))


def _torch_output(layer: Layer, x: np.ndarray, tensors: Mapping[str, Tensor], name: str) -> np.ndarray:
    """Torch's output of a layer for `x` (channels last) with the tensors of the file."""
    import torch
    from torch.nn import functional

    def tensor(leaf: str) -> Any:
        return torch.from_numpy(np.array(tensors[f"{name}.{leaf}"].read())) if f"{name}.{leaf}" in tensors else None

    inputs, weight, bias = torch.from_numpy(np.array(x)), tensor("weight"), tensor("bias")
    if isinstance(layer, Dense):
        return functional.linear(inputs, weight, bias).numpy()
    if isinstance(layer, nn.LayerNorm):
        return functional.layer_norm(inputs, inputs.shape[-1:], weight, bias, layer.epsilon).numpy()
    images = inputs.permute(0, 3, 1, 2)
    if isinstance(layer, BatchNorm):
        mean, var, scale, shift = (
            part.reshape(-1) for part in (tensor("running_mean"), tensor("running_var"), weight, bias)
        )
        result = functional.batch_norm(images, mean, var, scale, shift, eps=layer.epsilon)
    else:
        padding: Any = nn.linear.canonicalize_padding(layer.padding, 2)
        size: Any = layer.kernel_size
        strides: Any = layer.strides
        rows, columns = convolution.explicit(padding, x.shape, size, strides)
        padded = functional.pad(images, (*columns, *rows))
        result = functional.conv2d(padded, weight, bias, strides, groups=layer.feature_group_count)
    return result.permute(0, 2, 3, 1).numpy()
