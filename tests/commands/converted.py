"""A small network with torch's names, and what the command `dml-jax convert` makes of it."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.backbones import resnet
from dml_jax.backbones.weights import convert, converted
from dml_jax.commands import cli
from dml_jax.commands import convert as command
from dml_jax.config import plugin_module
from dml_jax.methods.contract import Batch
from tests.backbones import state_dicts

TINY = resnet.Config(depths=(1, 1), widths=(4, 6))
CHANNELS = 24
BATCH: Any = Batch(np.zeros((2, 4, 32, 32, 3), np.uint8), np.array([0, 0, 1, 1]), np.arange(4))


def status(*arguments: str) -> int:
    return cli.exit_code(lambda: command.execute(list(arguments)))


def check_tiny(directory: str, source: state_dicts.StateDict) -> None:
    """The converted directory contains the arrays of the source at the right paths."""
    params, stats = resnet.build(replace(TINY, pretrained=directory)).init(jax.random.key(0), (32, 32))
    for layer, name in (("conv1", "conv1"), ("conv2", "layer2.0.conv2"), ("downsample_conv", "layer2.0.downsample.0")):
        branch = params if layer == "conv1" else params["layer2_0"]
        np.testing.assert_array_equal(branch[layer]["kernel"], source[f"{name}.weight"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(params["layer1_0"]["bn3"]["scale"], source["layer1.0.bn3.weight"])
    np.testing.assert_array_equal(
        stats["layer2_0"]["downsample_bn"]["var"], source["layer2.0.downsample.1.running_var"]
    )
    assert isinstance(params["conv1"]["kernel"], jax.Array)


def linear(rng: np.random.Generator, name: str, outputs: int, inputs: int) -> state_dicts.StateDict:
    return {
        f"{name}.weight": rng.standard_normal((outputs, inputs)).astype(np.float32),
        f"{name}.bias": rng.standard_normal(outputs).astype(np.float32),
    }


def load_checkpoint(method: Any, *files: Path) -> tuple[Any, Any, list[str]]:
    assert status(f"--weights={','.join(map(str, files))}", "--output=out") == 0
    shapes = jax.eval_shape(method.init, jax.random.key(0), BATCH)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    return converted.load_method("out", *zeros)


@cache
def zeros(architecture: str, config: Any) -> state_dicts.StateDict:
    """The tensors of a complete file, all zero, in the memory of one number."""
    build = plugin_module("backbone", architecture).build
    shapes = jax.eval_shape(lambda: build(config).init(jax.random.key(0), (224, 224)))
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        keys = tuple(key.key for key in path[1:])
        name, shape = convert.torch_name(architecture, keys), convert.torch_shape(keys, leaf.shape)
        found[name] = np.broadcast_to(np.float32(0), shape)
    return found
