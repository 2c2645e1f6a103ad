"""Work directories as finished runs leave them, without training."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax import seal

PROTOCOL = "clean protocol; query excluded by index"


def write_run(
    directory: Path,
    hits: np.ndarray,
    *,
    config: dict[str, Any] | None = None,
    protocol: str = PROTOCOL,
    labels: str = "0123456789abcdef",
    names: str = "",
    steps: int = 100,
    **metrics: Any,
) -> None:
    """A run whose queries have a hit at rank 1 (True) or none.

    Args:
      directory: to create.
      hits: bool [N].
      config: whole configuration, or None for an ensemble.
      protocol: in `results.json`.
      labels, names: what stands for the test labels and for the names of the test images.
      steps: length.
      metrics: further entries of `results.json`.
    """
    (directory / "embeddings" / "test").mkdir(parents=True)
    (directory / "embeddings" / "test" / "labels.npy").write_text(labels)
    (directory / "embeddings" / "test" / "ids.json").write_text(names or str(len(hits)))
    seal.close(directory / "embeddings" / "test", "embeddings")
    results = {"recall@1": float(hits.mean()), "recall@1_stderr": 0.01, "map@r": float(hits.mean()) / 2}
    results |= {"protocol": protocol, "model": "last", "step": steps, "steps": steps}
    results |= {"length": {"steps": steps, "epochs": 0}}
    results |= {"timing": {"seconds": 60.0, "images_per_second": 100.0, "peak_memory": 2**30}}
    (directory / "results.json").write_text(json.dumps(results | metrics))
    if config is not None:
        (directory / "config.json").write_text(json.dumps({"config": config}))


def hits(share: float, count: int = 1000, seed: int = 0) -> np.ndarray:
    """bool [count], of which about this share is true."""
    return np.random.default_rng(seed).random(count) < share
