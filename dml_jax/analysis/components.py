"""Principal components of the embeddings of a split."""

from dml_jax.analysis import embedding_maps
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun

TITLE = "Map of the embeddings (principal components)"


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """A map of the split."""
    return embedding_maps.findings(run, split, None, "components", "Principal components")
