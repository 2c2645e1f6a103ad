"""Exact evaluation: retrieval, nearest neighbours, clustering, geometry, re-ranking, verification.

    from dml_jax import evaluation

    evaluation.retrieval(embeddings, labels, ks=(1, 10))
    evaluation.kmeans.fit(embeddings, 100)

Metrics, searches and clusterings check their arguments first. They raise `DataError` for wrong
shapes, types and sizes and for rows that are not finite, and `ConfigError` for unknown options.
Modules and metrics are imported on first use, so that `import dml_jax.evaluation` is fast.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see
    from dml_jax.evaluation import clustering as clustering
    from dml_jax.evaluation import geometry as geometry
    from dml_jax.evaluation import kmeans as kmeans
    from dml_jax.evaluation import metrics as metrics
    from dml_jax.evaluation import neighbors as neighbors
    from dml_jax.evaluation import open_set as open_set
    from dml_jax.evaluation import paired as paired
    from dml_jax.evaluation import protocol as protocol
    from dml_jax.evaluation import reranking as reranking
    from dml_jax.evaluation.metrics import *  # noqa: F403

_MODULES = [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]  # noqa: F405


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    metrics = importlib.import_module(f"{__name__}.metrics")
    if name == "__all__":
        return sorted([*_MODULES, *metrics.__all__])
    if name in metrics.__all__:
        return getattr(metrics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names
