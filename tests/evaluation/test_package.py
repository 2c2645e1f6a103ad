"""The public names of the package, the defaults that they promise, and their lazy import."""

import inspect
import subprocess
import sys

import pytest

from dml_jax import evaluation
from dml_jax.evaluation import kmeans, metrics, neighbors


def test_every_public_name_exists():
    assert {"kmeans", "metrics", "neighbors", "nmi", "retrieval"} <= set(evaluation.__all__)
    for name in evaluation.__all__:
        assert getattr(evaluation, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = evaluation.missing


def test_defaults():
    def defaults(function):
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    fit = {"init": "k-means++", "seed": 0, "restarts": 1, "max_iterations": 300}
    assert defaults(kmeans.fit) == fit
    assert defaults(neighbors.search) == {"metric": "cosine", "exclude_self": False}
    promised = {"ks": (1, 2, 4, 8), "metric": "cosine", "gallery": None, "gallery_labels": None}
    assert defaults(metrics.retrieval).items() >= promised.items()


def test_importing_the_package_imports_neither_jax_nor_scikit_learn():
    loaded = "{'jax', 'sklearn', 'scipy'} & set(sys.modules)"
    code = f"import sys, dml_jax.evaluation; sys.exit(bool({loaded}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
