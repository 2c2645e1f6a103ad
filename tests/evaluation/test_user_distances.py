"""Distances and metrics of the user's own against brute force in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, protocol, reranking, user_distances
from tests.evaluation import brute
from tests.evaluation.test_retrieval import sample

KS = (1, 5)


def manhattan(a, b):
    return jnp.abs(a[:, None] - b[None]).sum(axis=2)


def one_minus_cosine(a, b):
    a, b = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return 1 - a @ b.T


def first_hit(hits):
    """Rank of the first relevant row."""
    return 1 + int(np.argmax(hits))


def between(queries, gallery):
    return np.abs(queries[:, None].astype(np.float64) - gallery[None]).sum(axis=2)


@pytest.mark.parametrize("separate", [False, True])
def test_retrieval(separate, monkeypatch):
    monkeypatch.setattr(user_distances, "COLUMNS", 128)
    points, labels = sample(0, [2, 3, 5, 90, 100])
    points = np.round(3 * points)  # many ties
    queries = slice(0, 70) if separate else slice(None)
    gallery = {"gallery": points[70:], "gallery_labels": labels[70:]} if separate else {}
    others, of_others = (points[70:], labels[70:]) if separate else (points, labels)
    found = metrics.retrieval(
        points[queries],
        labels[queries],
        ks=KS,
        metric=manhattan,
        functions={"first_hit": first_hit},
        **gallery,
    )
    relevant = labels[queries, None] == of_others
    omitted = None if separate else np.eye(len(points), dtype=bool)
    means, each = brute.retrieval(between(points[queries], others), relevant, KS, omitted=omitted)
    brute.check(found, (means, each))
    assert found["user/first_hit"] == pytest.approx(
        each["rank"][each["rank"] > 0].mean(), rel=1e-12
    )


@pytest.mark.parametrize("own", [True, False])
def test_reranking_by_a_function_that_is_the_cosine(own, monkeypatch):
    monkeypatch.setattr(user_distances, "PAIRS", 512)
    points, _ = sample(1, [30, 40, 50], width=6)
    queries, gallery = (points, points) if own else (points[:40], points[40:])
    expected = reranking.search(queries, gallery, 10, exclude_self=own)
    found = reranking.search(queries, gallery, 10, metric=one_minus_cosine, exclude_self=own)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], atol=2e-6)


def test_metrics_of_knuser_distances_do_not_depend_on_the_way():
    """Functions of the ranking sort every query; the other metrics stay as they are."""
    points, labels = sample(2, [1, 2, 8, 40])
    plain = metrics.retrieval(points, labels, ks=KS)
    found = metrics.retrieval(points, labels, ks=KS, functions={"one": lambda hits: 1.0})
    assert {key: found[key] for key in plain} == pytest.approx(plain, rel=1e-12)
    assert found["user/one"] == 1
    by_function = metrics.retrieval(points, labels, ks=KS, metric=one_minus_cosine)
    assert by_function == pytest.approx(plain, rel=1e-12)


def test_the_protocol_states_how_a_function_ranks():
    text = protocol.description(cluster=False, metric=manhattan)
    assert f"ranking by {__name__}.manhattan, computed in float64 and rounded to float32" in text


@pytest.mark.parametrize(
    ("distance", "message"),
    [
        (
            lambda a, b: jnp.log(manhattan(a, b)),
            r"<lambda>: is -inf between rows of lengths .*; it must be finite",
        ),
        (
            lambda a, b: a.sum(1)[:, None] - 2 * b.sum(1)[None],
            "<lambda>: is .* from row .*; it must be symmetric",
        ),
        (
            lambda a, b: manhattan(a, b).sum(axis=1),
            r"<lambda>: returns \[128\] for 128 and 1024 rows; give \[N, M\]",
        ),
    ],
)
def test_distances_that_do_not_fit(distance, message):
    points, labels = sample(3, [4, 4])
    with pytest.raises(DataError, match=message):
        metrics.retrieval(points, labels, ks=KS, metric=distance)
