"""Evaluation of a split: which metrics it returns, how the protocols differ, its description, and
the table of metrics."""

import math

import numpy as np
import pytest

from dml_jax.evaluation import clustering, kmeans, metric_table, metrics, protocol
from tests.evaluation import brute

POINTS, LABELS = brute.sample(0, [6] * 8)


def test_all_metrics_of_a_split():
    found = protocol.evaluate(POINTS, LABELS, ks=(1, 4))
    assert protocol.evaluate(POINTS, np.array(list("abcdefgh"))[LABELS], ks=(1, 4)) == found
    keys = ["recall@1", "recall@4", "macro_recall@1", "mrr", "r_precision", "map@r", "nmi"]
    assert set(found) == {"lone_queries", *keys, *(f"{key}_stderr" for key in keys)}
    expected = metrics.retrieval(POINTS, LABELS, ks=(1, 4))
    assert {k: v for k, v in found.items() if "nmi" not in k} == expected
    directions = POINTS / np.linalg.norm(POINTS, axis=1, keepdims=True)
    assignments = kmeans.fit(directions, 8, restarts=10).assignments
    for average in ("arithmetic", "geometric"):
        found = protocol.evaluate(POINTS, LABELS, ks=(1, 4), average=average)
        for name in ("nmi", "nmi_stderr"):
            expected = getattr(clustering, name)(LABELS, assignments, average=average)
            assert found[name] == pytest.approx(expected, abs=1e-12)
    long = protocol.evaluate(1e300 * POINTS.astype(np.float64), LABELS, average=average, ks=(1, 4))
    assert long == pytest.approx(found, rel=1e-9)


def test_every_metric_has_an_entry_in_the_table():
    """Otherwise it would be missing from the console tables and the report."""
    found = protocol.evaluate(POINTS, LABELS, ks=(4, 1))
    found |= dict.fromkeys(geometry := ["density", "spectral_decay"], 0.5)
    names = [entry.name for entry in metric_table.columns(found)]
    recalls = ["recall@1", "recall@4", "macro_recall@1", "mrr"]
    assert names == [*recalls, "map@r", "r_precision", "nmi", *geometry]
    assert {key for key in found if not key.endswith("_stderr")} == {*names, "lone_queries"}
    assert [key for key in found if key in names] == names
    # Two K of Recall@K; nDCG, of which a table has two, needs grades.
    assert len(names) == len(metric_table.METRICS) + 1 - 2


def test_cells_of_the_table():
    results = {"nmi": 0.7, "recall@10": 0.9, "recall@2": 0.51234, "recall@2_stderr": 0.004}
    results |= {"density": 0.12345, "step": 3}
    recall, _, nmi, density = metric_table.columns(results)
    assert metric_table.cell(results, recall) == "51.2 ± 0.4"
    assert metric_table.cell(results, nmi, digits=2) == "70.00"
    assert metric_table.cell(results, density) == "0.1235"
    assert metric_table.cell({}, nmi) == metric_table.cell({"nmi": None}, nmi) == "–"
    undefined = {"recall@2": math.nan, "recall@2_stderr": math.nan}  # of no query
    assert metric_table.cell(undefined, recall) == "–"


def test_the_paper_protocol_counts_a_duplicate_as_the_query_itself():
    points, labels = POINTS.copy(), LABELS.copy()
    points[::2] = points[1::2]  # every row has a duplicate
    labels[1::4] = 99  # half of the duplicates belong to another class
    clean, paper = (
        protocol.evaluate(points, labels, protocol=name, cluster=False)["recall@1"] for name in ("clean", "paper")
    )
    assert paper > clean
    plain = protocol.evaluate(POINTS, LABELS)
    assert protocol.evaluate(POINTS, LABELS, protocol="paper") == plain


def test_a_number_is_the_only_k():
    lists = np.argsort(-(POINTS @ POINTS.T) + 999 * np.eye(48), axis=1)[:, :47]
    assert metrics.retrieval(POINTS, LABELS, ks=1) == metrics.retrieval(POINTS, LABELS, ks=(1,))
    found, expected = (protocol.evaluate(POINTS, LABELS, ks=k, cluster=False) for k in (1, (1,)))
    assert found == expected
    found, expected = (metrics.of_ranked_lists(lists, LABELS, ks=k) for k in (1, (1,)))
    assert found == expected


def test_description():
    few = protocol.description(classes=98)
    assert "clean protocol" in few
    assert "excluded by index" in few
    assert "k-means++ initialisation, best of 10, at most 300 iterations" in few
    options = {"average": "geometric", "clustering": {"restarts": 2}}
    many = protocol.description("paper", classes=11_316, **options)
    assert "first neighbour dropped" in many
    assert "geometric" in many
    assert "random initialisation, best of 2, at most 20 iterations" in many
    assert "left out" in protocol.description(cluster=False, lone_queries="omit")
    shop = protocol.description(cluster=False, gallery=True, metric="euclidean")
    assert ("separate gallery" in shop, "euclidean" in shop, "NMI" in shop) == (True, True, False)
