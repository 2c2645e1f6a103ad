"""Exported runs, whose embeddings are evaluated together."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from dml_jax import table
from tests.tiny_model import identity

ROWS = 24


def unit(seed: int, columns: int, labels: np.ndarray) -> np.ndarray:
    """Noisy unit rows around a direction for each class."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(labels.max() + 1, columns))[labels] + 1.5 * rng.normal(size=(len(labels), columns))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def member(
    directory: Path,
    seed: int,
    columns: int,
    split: str = "test",
    *,
    evaluation: Mapping[str, Any] = MappingProxyType({}),
    select: str = "last",
    **changes: Any,
) -> np.ndarray:
    """Writes the exported arrays and `config.json` of a run; returns its embeddings."""
    labels = np.arange(ROWS) % 4
    points = unit(seed, columns, labels)
    given = {"labels": labels, "ids": [f"{split}{i}.png" for i in range(ROWS)]} | changes
    given["embeddings"] = points[: len(given["ids"])]
    table.write(directory / "embeddings" / split, **given, identity=identity(seed))
    settings = {"protocol": "clean", "cluster": False, "ks": [1, 2], **evaluation}
    config = {"evaluation": settings, "train": {"select": select}}
    facts = {"config": config, "data_hash": "", "classes": 4, "images": 9, "shape": [8, 8]}
    (directory / "config.json").write_text(json.dumps(facts))
    return points
