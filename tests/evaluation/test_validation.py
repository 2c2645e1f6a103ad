"""Labels that are compared exactly, galleries that hold the queries, files; the public names of the package, their
defaults and lazy import. What is refused: `tests/refusals/evaluation.txt`."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dml_jax import evaluation, losses
from dml_jax.data import samplers
from dml_jax.evaluation import kmeans, metrics, neighbors, validation

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.repeat(np.arange(4), 3)
UP = [2**53 + i for i in range(9)]  # float64 holds every second integer beyond 2**53
BEYOND = [5, -1, 7, 2**53 + 1, 2**53, 3, 5, -(2**62), 2**63 - 1]
TOP = [2**63 + i for i in range(-4, 5)]


@pytest.mark.parametrize(
    ("own", "other", "kinds"),
    [
        (UP[1:6:2], UP, (np.int64, np.uint64)),
        (UP[1:6:2], UP, (np.uint64, np.int64)),
        ([2**63 + 1, 2**53 + 1, 2**63], BEYOND, (np.uint64, np.int64)),
        ([2**53 + 1, -1, 2**63 - 1], TOP, (np.int64, np.uint64)),
        ([2**63 + 1, 2**63 + 2, 5], TOP, (np.uint64, np.uint64)),
    ],
)
def test_mixed_integers_are_compared_exactly(own, other, kinds):
    """As labels, labels of several classes, groups and ranked lists."""
    given = {"gallery": X[3:], "ks": (1, 9)}
    numbers = {value: i for i, value in enumerate({*own, *other})}
    small = np.array([numbers[v] for v in own]), np.array([numbers[v] for v in other])
    wide = np.array(own, kinds[0]), np.array(other, kinds[1])
    expected = metrics.retrieval(X[:3], small[0], gallery_labels=small[1], **given)
    assert metrics.retrieval(X[:3], wide[0], gallery_labels=wide[1], **given) == expected
    lists = [[[v] for v in side.tolist()] for side in wide]
    several = metrics.retrieval(X[:3], lists[0], gallery_labels=lists[1], **given)
    assert several == {key: value for key, value in expected.items() if not key.startswith("macro")}
    given |= {"labels": np.ones(3, int), "gallery_labels": np.ones(9, int)}
    ranked = np.argsort(-(X[:3] @ X[3:].T), axis=1)
    found, expected = (
        (
            metrics.retrieval(X[:3], groups=a, gallery_groups=b, **given),
            metrics.of_ranked_lists(ranked, a, b, ks=(1, 9)),
        )
        for a, b in (wide, small)
    )
    assert found == expected


def test_a_gallery_that_holds_the_queries_in_another_order():
    x = X + 0.5
    turned = {"gallery": x[::-1], "gallery_labels": Y[::-1], "ks": 1}
    warning = "gallery: 12 of 12 queries equal one of its rows and may find themselves"
    with pytest.warns(UserWarning, match=warning):
        metrics.retrieval(x, Y, **turned)
    more = np.concatenate([x[3:6] + 9, x[:3]]).astype(np.float64)
    with pytest.warns(UserWarning, match="gallery: 3 of 12 queries"):
        metrics.retrieval(x, Y, gallery=more, gallery_labels=Y[:6], ks=1)
    metrics.retrieval(x, Y, exclude_self=False, **turned)
    metrics.retrieval(x, Y, groups=np.arange(12), gallery_groups=np.arange(12)[::-1], **turned)
    zeros = np.array([[0.0, 1], [0, 1], [1, 0]]), np.array([[-0.0, 1], [1, 1]])
    assert validation.shared_rows(*zeros) == 1


def test_lists_of_a_gallery_may_hold_the_number_of_the_query():
    lists = np.arange(12)[:, None] + np.arange(4)
    metrics.of_ranked_lists(lists % 12, Y, Y, ks=1)


def test_an_empty_file(tmp_path):
    np.save(tmp_path / "empty.npy", X[:0])
    assert validation.load(tmp_path / "empty.npy").shape == (0, 4)


USERS: dict[str, Callable[[Any], Any]] = {
    "metric": lambda y: metrics.retrieval(X, y, ks=1)["recall@1"],
    "sampler": lambda y: samplers.balanced(y, 4, images_per_class=2, seed=0).batch(0),
    "loss": lambda y: np.asarray(losses.contrastive(X, y)),
}


@pytest.mark.parametrize("user", USERS)
def test_equal_labels_in_other_forms(user: str) -> None:
    """Lists and arrays of objects are looked at before NumPy joins their types."""
    expected = USERS[user](np.array([0, 1] * 6))
    for labels in (
        [*"ab"] * 6,
        np.array([*"ab"] * 6, object),
        np.array([0, 1] * 6, object),
        [np.int64(0), 1] * 6,
        [2**63, 2**63 + 1] * 6,
    ):
        np.testing.assert_array_equal(USERS[user](labels), expected)


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
