"""Converted weights of small networks."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from dml_jax.backbones import resnet, vit
from dml_jax.backbones.weights import converted
from dml_jax.train import model

VIT = vit.Config(depth=1, width=16, heads=2, patch=8, output="patches")
RESNET = resnet.Config(block="basic", depths=(1,), widths=(8,), stem="small")


def write(directory: Path, module: Any, config: Any) -> Any:
    """Converted weights of a network for images of 32 pixels; returns its parameters and statistics."""
    params, stats = module.build(config).init(jax.random.key(0), (32, 32))
    noise = jax.tree.map(lambda x: np.asarray(x) + np.random.default_rng(0).normal(0, 0.1, x.shape), params)
    arrays = traverse_util.flatten_dict({"backbone": {"params": noise, "stats": stats}}, sep="/")
    arrays = {path: np.asarray(array, np.float32) for path, array in arrays.items()}
    about = {"architecture": asdict(config), "image_shape": [32, 32]}
    converted.write(directory, arrays, about, model.identify)
    return noise, stats
