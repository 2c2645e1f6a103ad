"""Reading the reference files: every npz of a family under $DML_JAX_GOLDEN, by pattern."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.backbones.contract import Backbone
from tests.papers import PAPERS

ROOT = Path(os.environ.get("DML_JAX_GOLDEN", Path(__file__).parent / "data")).expanduser()
FAMILIES = ("backbones", "metrics", "transforms", *PAPERS)
if not any((ROOT / family).is_dir() for family in FAMILIES):
    raise FileNotFoundError(f"DML_JAX_GOLDEN={ROOT}: holds none of {', '.join(FAMILIES)}")


def names(family: str, pattern: str = "*") -> list[str]:
    """File names (no ending) of one family; empty where the family has no directory."""
    return sorted(path.stem for path in (ROOT / family).glob(f"{pattern}.npz"))


@cache
def load(family: str, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and `meta` of one file; read-only, as tests share them."""
    with np.load(ROOT / family / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads(str(arrays.pop("meta")))


def of_vectors(
    channels: int, layer: Callable[[Any, jax.Array], jax.Array] = lambda params, x: x
) -> Backbone:
    """A layer of parameters and vectors [B, n], whose results [B, channels] are feature maps of one
    position."""

    def apply(
        params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: Any
    ) -> tuple[jax.Array, Any]:
        return layer(params, inputs)[:, None, None, :], stats

    return Backbone(
        init=lambda *_: ({}, {}), apply=apply, channels=channels, preprocess=lambda x: x
    )
