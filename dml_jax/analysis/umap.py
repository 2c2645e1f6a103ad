"""UMAP of the embeddings of a split; needs the optional package umap-learn."""

import importlib.util

import numpy as np

from dml_jax.analysis import embedding_maps
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun

TITLE = "Map of the embeddings (UMAP)"
NEIGHBORS = 15


def reason_not_to(run: TrainedRun) -> str:
    """Why the analysis is not available; empty if it is."""
    installed = importlib.util.find_spec("umap") is not None
    return "" if installed else "umap-learn is not installed: pip install umap-learn"


def project(rows: np.ndarray) -> np.ndarray:
    """UMAP of rows [N, D] -> float [N, 2], the same on every call."""
    import umap

    neighbors = min(NEIGHBORS, len(rows) - 1)
    return np.asarray(umap.UMAP(n_neighbors=neighbors, random_state=0, n_jobs=1).fit_transform(rows))


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """A map of the split."""
    return embedding_maps.findings(run, split, project, "umap", "UMAP")
