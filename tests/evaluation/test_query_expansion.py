"""Expanded queries against the formula in float64, one query at a time."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import query_expansion
from tests.evaluation import brute


def expected(queries, gallery, k, alpha, own):
    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    asking, others = unit(np.asarray(queries, np.float64)), unit(np.asarray(gallery, np.float64))
    result = []
    for i, q in enumerate(asking):
        cosine = others @ q
        order = [g for g in np.argsort(-cosine, kind="stable") if not (own and g == i)][:k]
        result.append(unit(q + sum(max(cosine[g], 0) ** alpha * others[g] for g in order)))
    return np.array(result)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("own", [True, False])
def test_formula(alpha, own):
    rng = np.random.default_rng(0)
    gallery = 5 * rng.normal(size=(50, 4)).astype(np.float32)
    queries = gallery if own else rng.normal(size=(20, 4)).astype(np.float32)
    for k in (1, 45):  # 45 includes rows with a negative cosine
        found = query_expansion.expand(queries, gallery, k, alpha=alpha, exclude_self=own)
        np.testing.assert_allclose(found, expected(queries, gallery, k, alpha, own), atol=2e-6)


def test_expansion_improves_retrieval_on_gaussian_classes():
    rng = np.random.default_rng(1)
    labels = np.arange(150) % 10
    x = (rng.normal(size=(10, 16))[labels] + 1.1 * rng.normal(size=(150, 16))).astype(np.float32)
    better = query_expansion.expand(x, x, 5, alpha=3, exclude_self=True)
    plain, found = (
        brute.retrieval(brute.distances(queries, x, "cosine"), labels, labels, (1,), exclusion="index")[0]["map@r"]
        for queries in (x, better)
    )
    assert found > plain + 0.03


def test_invalid_arguments():
    x = np.eye(4, dtype=np.float32)
    with pytest.raises(DataError, match="k=4: there are 3 candidates"):
        query_expansion.expand(x, x, 4, exclude_self=True)
    with pytest.raises(DataError, match="alpha=-1: must be"):
        query_expansion.expand(x, x, 2, alpha=-1)
