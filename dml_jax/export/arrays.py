"""Embeddings as NumPy arrays with a manifest: what a run hands over."""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dml_jax.errors import DataError

WRITTEN = {"embeddings.npy", "labels.npy", "ids.json", "manifest.json", "neighbors.png"}


def sha256(path: Path) -> str:
    """Digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free(directory: Path) -> None:
    """Raises DataError unless `directory` is new or holds nothing but what `write` wrote, and may be replaced."""
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory}: is a file; give another directory")
    foreign = sorted({entry.name for entry in directory.iterdir()} - WRITTEN) if directory.exists() else []
    if foreign:
        raise DataError(f"{directory}: holds {foreign[0]}, which is not from here; give another directory")


def write(
    directory: Path,
    embeddings: np.ndarray,
    labels: np.ndarray | None,
    ids: Sequence[str],
    *,
    config_hash: str,
    step: int,
) -> None:
    """Writes `embeddings.npy`, `labels.npy`, `ids.json` and `manifest.json` into `directory`, all or nothing.

    Args:
      directory: e.g. `<workdir>/embeddings/test`; replaced if it exists.
      embeddings: float32 [N, D], rows of unit length.
      labels: int [N], or None where there are none.
      ids: N names.
      config_hash: of the run.
      step: of the checkpoint.

    Raises:
      DataError: the directory holds something else, which replacing it would lose.
    """
    directory = directory.resolve()  # "." has no name
    free(directory)
    fresh = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {"embeddings.npy": embeddings.astype(np.float32)}
    if labels is not None:
        arrays["labels.npy"] = labels.astype(np.int64)
    for name, array in arrays.items():
        np.save(fresh / name, array)
    (fresh / "ids.json").write_text(json.dumps(list(ids)), encoding="utf-8")
    manifest = {
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
        "dtypes": {name: str(array.dtype) for name, array in arrays.items()},
        "normalised": True,
        "distance": "cosine",
        "config_hash": config_hash,
        "checkpoint_step": step,
        "sha256": {name: sha256(fresh / name) for name in arrays},
    }
    (fresh / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(directory, ignore_errors=True)
    os.replace(fresh, directory)
