"""Exact evaluation: retrieval, nearest neighbours, clustering, geometry, re-ranking, verification.

    from dml_jax import evaluation

    evaluation.retrieval(embeddings, labels, ks=(1, 10))
    evaluation.kmeans.fit(embeddings, 100)

Metrics, searches and clusterings validate their arguments first and raise `DataError` for a wrong
shape, type or size, lengths that differ, or rows that are not finite, and `ConfigError` for unknown
words. Modules and metrics are imported on first use, which keeps `import dml_jax.evaluation` fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dml_jax.evaluation.metrics import *  # noqa: F403

_MODULES = (
    "clustering",
    "compression",
    "geometry",
    "kmeans",
    "metrics",
    "neighbors",
    "open_set",
    "promises",
    "protocol",
    "reranking",
    "user_distances",
    "validation",
)

_METRICS = (
    "ami",
    "density",
    "effective_rank",
    "f1_pairs",
    "nmi",
    "nmi_stderr",
    "of_ranked_lists",
    "retrieval",
    "singular_values",
    "spectral_decay",
)
__all__ = [*_METRICS, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _METRICS:
        return getattr(importlib.import_module(f"{__name__}.metrics"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
