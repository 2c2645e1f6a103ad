"""Converted weights on disk: a directory with `weights.safetensors` and `weights.json`.

Tensors are named by their path in the trees of a run: `backbone/params/...` and `backbone/stats/...`. Checkpoints
published by the authors of a method also have `method/params/...` and `method/state/...`, as in `Method.init`.
`classifier/...` is the ImageNet classifier, which no method uses.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from dml_jax.errors import WeightsError
from dml_jax.files import atomic_directory, below_a_file, read_json, reading, sha256

FORMAT = 2  # of the options in `weights.json`; part of the names of cached conversions
WEIGHTS, METADATA = "weights.safetensors", "weights.json"
REMEDY = "give a directory of converted weights, or convert the weights again"


@dataclass
class Metadata:
    """The fields of `weights.json` that are read again."""

    architecture: dict[str, Any]
    weights_sha256: str
    image_shape: tuple[int, int] = (224, 224)
    crop_fraction: float = 0.875
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"


def check_output(directory: Path) -> None:
    """Raises WeightsError unless `write` can create `directory`."""
    if directory.exists():
        raise WeightsError(f"--output={directory}: already exists; remove it or choose another directory")
    if below_a_file(directory):
        raise WeightsError(f"--output={directory}: a parent of this path is a file; choose another directory")


def write(directory: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Writes converted weights to a new directory, which appears completely or not at all.

    Args:
      arrays: float32 by path, with their axes in JAX order.
      metadata: content of `weights.json`; the SHA-256 of the weights is added.
    """
    check_output(directory)
    with atomic_directory(directory) as draft:
        check_output(directory)  # again, now that nobody else can create it
        try:
            safetensors.numpy.save_file(dict(arrays), draft / WEIGHTS)
        except safetensors.SafetensorError as error:  # which hides the OSError, e.g. of a full disk
            raise WeightsError(f"{directory}: cannot be written ({error})") from None
        complete = {**metadata, "weights_sha256": sha256(draft / WEIGHTS)}
        (draft / METADATA).write_text(json.dumps(complete, indent=2) + "\n")


def read_metadata(directory: Path) -> dict[str, Any]:
    """The content of `weights.json`."""
    metadata: dict[str, Any] = read_json(directory / METADATA, Metadata, REMEDY, WeightsError)
    return metadata


def read(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays by path, content of `weights.json`); raises WeightsError if the weights have changed since `write`."""
    metadata = read_metadata(directory)
    with reading(directory / WEIGHTS, REMEDY, WeightsError):
        if sha256(directory / WEIGHTS) != metadata["weights_sha256"]:
            raise WeightsError(f"SHA-256 differs from the one in {METADATA}; convert the weights again")
        return safetensors.numpy.load_file(directory / WEIGHTS), metadata


def subtree(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays whose path starts with `prefix` (which ends in a slash), as a nested dict."""
    selected = {path.removeprefix(prefix): array for path, array in arrays.items() if path.startswith(prefix)}
    return traverse_util.unflatten_dict(selected, sep="/")
