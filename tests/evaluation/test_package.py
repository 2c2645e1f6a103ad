"""The public names of the package and their lazy import."""

import subprocess
import sys

import pytest

from dml_jax import evaluation


def test_every_public_name_exists():
    assert {"kmeans", "metrics", "neighbors", "nmi", "retrieval"} <= set(evaluation.__all__)
    for name in evaluation.__all__:
        assert getattr(evaluation, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = evaluation.missing


def test_importing_the_package_imports_neither_jax_nor_scikit_learn():
    code = (
        "import sys, dml_jax.evaluation; sys.exit(bool({'jax', 'sklearn', 'scipy'} & "
        "set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
