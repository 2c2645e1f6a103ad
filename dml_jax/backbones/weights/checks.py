"""Checks of a conversion: every layer against torch, and the predicted classes of a photograph.

The network runs on an image, and torch computes each convolution, linear layer and norm again, from the same input
and with the tensors of the published file. This detects wrong axes, paddings, epsilons and mixed-up tensors without
torch's definition of the network. Wrong pixels, sizes or interpolation change no tensor, so only the classes named for
a known photograph show them.
"""

import importlib.util
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones import convolution
from dml_jax.backbones.batch_norm import BatchNorm
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense
from dml_jax.backbones.weights import store
from dml_jax.backbones.weights.convert import Converted
from dml_jax.config.modules import module
from dml_jax.errors import WeightsError

Layer = nn.Conv | Dense | nn.LayerNorm | BatchNorm

CLASSES = Path(__file__).with_name("imagenet_classes.txt")  # in the order of the published classifiers
LIKELIEST = 5  # classes that are listed
MAX_DEVIATION = 1e-4  # relative to the largest output of a layer; float32 rounding stays below 1e-5


def against_torch(converted: Converted, arrays: Mapping[str, np.ndarray], source: str) -> str:
    """Compares every layer on random pixels, in one line; raises WeightsError beyond `MAX_DEVIATION`."""
    if not has_torch():
        return "not compared with torch because torch is not installed"
    network = converted.network
    side = network.side if network.config.name in ("deit", "siglip", "vit") else 64
    deviations, _ = compare_layers(converted, arrays, np.random.default_rng(0).standard_normal((1, side, side, 3)))
    worst = max(deviations, key=lambda name: deviations[name])
    line = (
        f"{len(deviations)} layers compared with torch: maximum relative deviation {deviations[worst]:.1e}, in {worst}"
    )
    if deviations[worst] > MAX_DEVIATION:
        raise WeightsError(f"{source}: {line}; nothing was written")
    return line


def classify(pixels: np.ndarray, converted: Converted, arrays: Mapping[str, np.ndarray], source: str) -> list[str]:
    """The likeliest classes of a photograph, uint8 [side, side, 3], as lines; also by torch's layers if installed."""
    names = CLASSES.read_text().splitlines()
    kernels = [arrays[path] for path in arrays if path.startswith("classifier/") and path.endswith("/kernel")]
    if [kernel.shape[1] for kernel in kernels] != [len(names)]:
        raise WeightsError(f"--verify: {source} has not one classifier of ImageNet's {len(names)} classes; omit it")
    bias = next(arrays[path] for path in arrays if path.startswith("classifier/") and path.endswith("/bias"))

    def likeliest(features: Any) -> list[str]:
        logits = np.asarray(features, np.float64).mean(axis=(0, 1, 2)) @ kernels[0] + bias
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        return [f"{names[i]} {probabilities[i]:.1%}" for i in np.argsort(-logits, kind="stable")[:LIKELIEST]]

    network = converted.network
    backbone, params, stats = _build(converted, arrays)
    inputs = backbone.preprocess(jnp.asarray(pixels[None]))
    features, _ = jax.jit(partial(backbone.apply, train=False))(params, stats, inputs)
    columns = [likeliest(features)]
    title = f"likeliest of {len(names):,} classes, at {network.side} pixels, {network.interpolation}"
    if has_torch():
        columns.append(likeliest(compare_layers(converted, arrays, np.asarray(inputs))[1]))
        title += "; with torch"
    return [f"{title}:", *(f"  {'; '.join(row)}" for row in zip(*columns, strict=True))]


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _build(converted: Converted, arrays: Mapping[str, np.ndarray]) -> tuple[Backbone, Any, Any]:
    config = converted.network.config
    backbone = module("backbone", config.name).build(config)
    return backbone, *(store.subtree(arrays, f"backbone/{part}/") for part in ("params", "stats"))


def compare_layers(
    converted: Converted, arrays: Mapping[str, np.ndarray], inputs: np.ndarray
) -> tuple[dict[str, float], np.ndarray]:
    """Runs a backbone on a normalised image [1, H, W, 3], and each layer again in torch, on torch's outputs.

    The result is the largest deviation in each layer, relative to its largest output, and torch's feature map.
    """
    deviations: dict[str, float] = {}
    modules = {key.rpartition("/")[0]: name.rpartition(".")[0] for key, name in converted.torch_names.items()}

    def compare(call: Callable[..., Any], arguments: Any, keywords: Any, context: nn.module.InterceptorContext) -> Any:
        ours = call(*arguments, **keywords)
        layer = context.module
        if isinstance(layer, Layer) and context.method_name == "__call__":
            name = modules["/".join(("backbone/params", *layer.path))]
            theirs = _torch_output(layer, np.asarray(arguments[0]), converted.state_dict, name)
            deviation = float(np.abs(np.asarray(ours) - theirs).max() / max(np.abs(theirs).max(), 1e-30))
            deviations[name] = deviation if math.isfinite(deviation) else math.inf
            return jnp.asarray(theirs)
        return ours

    backbone, params, stats = _build(converted, arrays)
    with nn.intercept_methods(compare), jax.default_matmul_precision("highest"):
        features, _ = backbone.apply(params, stats, jnp.asarray(inputs, jnp.float32), train=False, key=None)
    return deviations, np.asarray(features)


def _torch_output(layer: Layer, x: np.ndarray, tensors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Torch's output of a layer for `x` (channels last) with the tensors of the file."""
    import torch
    from torch.nn import functional

    def tensor(leaf: str) -> Any:
        found = tensors.get(f"{name}.{leaf}")
        return None if found is None else torch.from_numpy(np.array(found, np.float32))

    inputs, weight, bias = torch.from_numpy(np.array(x)), tensor("weight"), tensor("bias")
    if isinstance(layer, Dense):
        return functional.linear(inputs, weight, bias).numpy()
    if isinstance(layer, nn.LayerNorm):
        return functional.layer_norm(inputs, inputs.shape[-1:], weight, bias, layer.epsilon).numpy()
    images = inputs.permute(0, 3, 1, 2)
    if isinstance(layer, BatchNorm):
        parts = (part.reshape(-1) for part in (tensor("running_mean"), tensor("running_var"), weight, bias))
        result = functional.batch_norm(images, *parts, eps=layer.epsilon)
    else:
        padding: Any = nn.linear.canonicalize_padding(layer.padding, 2)
        size: Any = layer.kernel_size
        strides: Any = layer.strides
        rows, columns = convolution.explicit(padding, x.shape, size, strides)
        padded = functional.pad(images, (*columns, *rows))
        result = functional.conv2d(padded, weight, bias, strides, groups=layer.feature_group_count)
    return result.permute(0, 2, 3, 1).numpy()
