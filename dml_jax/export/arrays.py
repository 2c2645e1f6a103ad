"""Embeddings as NumPy arrays with a manifest: what a run hands over."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import validation as checked
from dml_jax.files import below_a_file, sha256

WRITTEN = {"embeddings.npy", "labels.npy", "ids.json", "manifest.json", "neighbors.png"}


def free(directory: Path) -> None:
    """Raises DataError unless `directory` is new or holds nothing but what `write` wrote, and may be replaced."""
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory}: is a file; give another directory")
    if below_a_file(directory):
        raise DataError(f"{directory}: lies below a file; give another directory")
    foreign = sorted({entry.name for entry in directory.iterdir()} - WRITTEN) if directory.exists() else []
    if foreign:
        raise DataError(f"{directory}: holds {foreign[0]}, which is not from here; give another directory")


class Exported(NamedTuple):
    """What `write` has written.

    Attributes:
      embeddings: float32 [N, D], rows of unit length.
      labels: int64 [N], or None where there are none.
      ids: N names.
      manifest: where they come from.
    """

    embeddings: np.ndarray
    labels: np.ndarray | None
    ids: list[str]
    manifest: dict[str, Any]


def read(directory: Path) -> Exported:
    """What `write` has written into `directory`, compared with its manifest.

    Raises:
      DataError: nothing there, or not what has been written.
    """
    if not (directory / "manifest.json").is_file():
        raise DataError(f"{directory}: holds no embeddings (no manifest.json); export them with --mode=export")
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        ids = json.loads((directory / "ids.json").read_text(encoding="utf-8"))
        changed = [name for name, digest in manifest["sha256"].items() if sha256(directory / name) != digest]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{directory}: cannot be read ({type(error).__name__}: {error}); export it again") from None
    if changed:
        raise DataError(f"{directory / changed[0]}: has changed since it was written (SHA-256); export it again")
    found = {name: checked.load(directory / name, name="array") for name in manifest["sha256"]}
    if "embeddings.npy" not in found or len(found["embeddings.npy"]) != len(ids):
        raise DataError(f"{directory}: has not one embedding for each of its ids; export it again")
    return Exported(found["embeddings.npy"], found.get("labels.npy"), ids, manifest)


def write(
    directory: Path,
    embeddings: np.ndarray,
    labels: np.ndarray | None,
    ids: Sequence[str],
    *,
    config_hash: str | None,
    step: int | None,
    members: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes `embeddings.npy`, `labels.npy`, `ids.json` and `manifest.json` into `directory`, all or nothing.

    Args:
      directory: e.g. `<workdir>/embeddings/test`; replaced if it exists.
      embeddings: float32 [N, D], rows of unit length.
      labels: int [N], or None where there are none.
      ids: N names.
      config_hash: of the run; None where there are several.
      step: of the checkpoint; None where there are several.
      members: manifests of the arrays that these are made of, if they are.

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
    manifest: dict[str, Any] = {
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
        "dtypes": {name: str(array.dtype) for name, array in arrays.items()},
        "normalised": True,
        "distance": "cosine",
        "config_hash": config_hash,
        "checkpoint_step": step,
        "sha256": {name: sha256(fresh / name) for name in arrays},
    }
    if members:
        manifest["members"] = list(members)
    (fresh / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(directory, ignore_errors=True)
    os.replace(fresh, directory)
