"""The judgement of a split: what it holds, how the protocols differ, what it says about itself."""

import numpy as np
import pytest

from dml_jax.evaluation import clustering, kmeans, metrics, protocol


def sample(seed=0, classes=12, each=8):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return (rng.normal(size=(classes, 16))[labels] + rng.normal(size=(len(labels), 16))).astype(np.float32), labels


def test_everything_a_split_is_judged_by():
    points, labels = sample()
    found = protocol.judge(points, labels, ks=(1, 4, 1000))
    keys = ["recall@1", "recall@4", "r_precision", "map@r", "nmi"]
    assert set(found) == {"lone_queries", *keys, *(f"{key}_stderr" for key in keys)}
    assert {k: v for k, v in found.items() if "nmi" not in k} == metrics.retrieval(points, labels, ks=(1, 4))
    directions = points / np.linalg.norm(points, axis=1, keepdims=True)
    assignments = kmeans.fit(directions, 12, restarts=10).assignments
    assert found["nmi"] == pytest.approx(clustering.nmi(labels, assignments), abs=1e-12)
    assert found["nmi_stderr"] == pytest.approx(clustering.nmi_stderr(labels, assignments), abs=1e-12)
    geometric = protocol.judge(points, labels, average="geometric")
    assert geometric["nmi"] == pytest.approx(clustering.nmi(labels, assignments, average="geometric"), abs=1e-12)


def test_the_paper_protocol_counts_a_query_beside_its_copy():
    points, labels = sample(1)
    points[::2] = points[1::2]  # every row has a copy
    labels[1::4] = 99  # and half of the copies are of another class
    clean, paper = (protocol.judge(points, labels, protocol=name, cluster=False) for name in ("clean", "paper"))
    assert paper["recall@1"] > clean["recall@1"]
    points, labels = sample(1)
    assert protocol.judge(points, labels, protocol="paper") == protocol.judge(points, labels)


def test_a_gallery_leaves_nothing_out():
    points, labels = sample(2)
    found = protocol.judge(points, labels, ks=(1,), gallery=points, gallery_labels=labels, cluster=False)
    assert found["recall@1"] == 1


def test_a_seed_is_a_result():
    points, labels = sample(3)
    assert protocol.judge(points, labels, seed=1, restarts=1) == protocol.judge(points, labels, seed=1, restarts=1)


def test_description():
    few = protocol.describe(classes=98)
    assert "clean protocol" in few
    assert "left out by index" in few
    assert "k-means++ start, best of 10, at most 300 iterations, seed 0" in few
    many = protocol.describe("paper", classes=11_316, average="geometric", seed=3, restarts=2)
    assert "first neighbour left out" in many
    assert "geometric" in many
    assert "random start, best of 2, at most 20 iterations, seed 3" in many
    shop = protocol.describe(cluster=False, gallery=True, metric="euclidean")
    assert "separate gallery" in shop
    assert "euclidean" in shop
    assert "NMI" not in shop
