"""t-SNE of the embeddings of a split (scikit-learn)."""

import numpy as np

from dml_jax.analysis import embedding_maps
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun

TITLE = "Map of the embeddings (t-SNE)"
PERPLEXITY = 30.0  # effective number of neighbours


def project(rows: np.ndarray) -> np.ndarray:
    """t-SNE of rows [N, D] -> float [N, 2], the same on every call; initialised with their principal components.

    In one thread: in several, its thousand short steps wait for each other where other programs use the cores.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, max(1.0, (len(rows) - 1) / 3))
    init = "pca" if rows.shape[1] > 1 else "random"
    with threadpool_limits(1):
        return np.asarray(TSNE(perplexity=perplexity, init=init, random_state=0).fit_transform(rows))


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """A map of the split."""
    return embedding_maps.findings(run, split, project, "tsne", "t-SNE")
