"""Evaluation of a split: which metrics it returns, how the protocols differ, and its
description."""

import numpy as np
import pytest

from dml_jax.evaluation import clustering, kmeans, metric_table, metrics, protocol


def sample(seed=0, classes=12, each=8):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return (rng.normal(size=(classes, 16))[labels] + rng.normal(size=(len(labels), 16))).astype(
        np.float32
    ), labels


def test_all_metrics_of_a_split():
    points, labels = sample()
    found = protocol.evaluate(points, labels, ks=(1, 4))
    assert protocol.evaluate(points, np.array(list("abcdefghijkl"))[labels], ks=(1, 4)) == found
    keys = ["recall@1", "recall@4", "macro_recall@1", "mrr", "r_precision", "map@r", "nmi"]
    assert set(found) == {"lone_queries", *keys, *(f"{key}_stderr" for key in keys)}
    assert {k: v for k, v in found.items() if "nmi" not in k} == metrics.retrieval(
        points, labels, ks=(1, 4)
    )
    directions = points / np.linalg.norm(points, axis=1, keepdims=True)
    assignments = kmeans.fit(directions, 12, restarts=10).assignments
    assert found["nmi"] == pytest.approx(clustering.nmi(labels, assignments), abs=1e-12)
    assert found["nmi_stderr"] == pytest.approx(
        clustering.nmi_stderr(labels, assignments), abs=1e-12
    )
    long = protocol.evaluate(1e300 * points.astype(np.float64), labels, ks=(1, 4))
    assert long == pytest.approx(found, rel=1e-9)
    geometric = protocol.evaluate(points, labels, average="geometric")
    assert geometric["nmi"] == pytest.approx(
        clustering.nmi(labels, assignments, average="geometric"), abs=1e-12
    )
    error = clustering.nmi_stderr(labels, assignments, average="geometric")
    assert geometric["nmi_stderr"] == pytest.approx(error, abs=1e-12)


def test_every_metric_has_an_entry_in_the_table():
    """Otherwise it would be missing from the console tables and the report."""
    points, labels = sample()
    found = protocol.evaluate(points, labels, ks=(4, 1))
    found |= dict.fromkeys(geometry := ["density", "spectral_decay"], 0.5)
    names = [entry.name for entry in metric_table.columns(found)]
    assert {key for key in found if not key.endswith("_stderr")} == {*names, "lone_queries"}
    recalls = ["recall@1", "recall@4", "macro_recall@1", "mrr"]
    assert names == [*recalls, "map@r", "r_precision", "nmi", *geometry]
    assert [key for key in found if key in names] == names
    # Two K of Recall@K; nDCG, of which a table has two, needs grades.
    assert len(names) == len(metric_table.METRICS) + 1 - 2


def test_the_paper_protocol_counts_a_duplicate_as_the_query_itself():
    points, labels = sample(1)
    points[::2] = points[1::2]  # every row has a duplicate
    labels[1::4] = 99  # half of the duplicates belong to another class
    clean, paper = (
        protocol.evaluate(points, labels, protocol=name, cluster=False)
        for name in ("clean", "paper")
    )
    assert paper["recall@1"] > clean["recall@1"]
    points, labels = sample(1)
    assert protocol.evaluate(points, labels, protocol="paper") == protocol.evaluate(points, labels)


def test_description():
    few = protocol.description(classes=98)
    for text in (
        "clean protocol",
        "excluded by index",
        "k-means++ initialisation, best of 10, at most 300 iterations",
    ):
        assert text in few
    many = protocol.description(
        "paper", classes=11_316, average="geometric", clustering={"restarts": 2}
    )
    for text in (
        "first neighbour dropped",
        "geometric",
        "random initialisation, best of 2, at most 20 iterations",
    ):
        assert text in many
    assert "left out" in protocol.description(cluster=False, lone_queries="omit")
    shop = protocol.description(cluster=False, gallery=True, metric="euclidean")
    assert ("separate gallery" in shop, "euclidean" in shop, "NMI" in shop) == (True, True, False)
