"""MRR, MAP over the whole ranking, precision@K and averages per class against scikit-learn and loops; string labels."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, recall_score

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, protocol
from dml_jax.evaluation._engine import plan, tiles
from tests.evaluation import brute
from tests.evaluation.test_retrieval import sample

KS = (1, 5, 30)


def expected(distances, labels, gallery_labels, *, exclusion=None):
    """The metrics from distances [Q, G]; query i excludes candidate i, its nearest candidate, or none."""
    reciprocal, average, precision, first, hit = [], [], [], [], []
    for i, row in enumerate(distances):
        order = np.lexsort((np.arange(len(row)), row))
        order = {"index": order[order != i], "position": order[1:], None: order}[exclusion]
        relevant = gallery_labels[order] == labels[i]
        reciprocal.append(1 / (1 + np.argmax(relevant)) if relevant.any() else 0.0)
        hit.append(relevant[0])
        if (gallery_labels == labels[i]).sum() > (exclusion is not None):
            average.append(average_precision_score(relevant, -np.arange(len(order))))
            precision.append([relevant[:k].mean() for k in KS])
            hits = [sum(relevant[: i + 1]) / (i + 1) * relevant[i] for i in range(len(relevant))]
            first.append([sum(hits[:k]) / min(k, relevant.sum()) for k in KS])
    mean = np.mean(precision, axis=0)
    found = {"mrr": np.mean(reciprocal), "mrr_stderr": np.std(reciprocal) / len(labels) ** 0.5, "map": np.mean(average)}
    found |= {f"precision@{k}": mean[j] for j, k in enumerate(KS)}
    found |= {f"map@{k}": mean for k, mean in zip(KS, np.mean(first, axis=0), strict=True)}
    classes, numbers = np.unique(labels, return_inverse=True)
    predicted = np.where(hit, numbers, len(classes))
    found["macro_recall@1"] = recall_score(numbers, predicted, labels=range(len(classes)), average="macro")
    return {key: pytest.approx(float(value), rel=1e-12) for key, value in found.items()}


@pytest.mark.parametrize("protocol_exclusion", ["index", "position"])
@pytest.mark.parametrize("sort_above", [256, 20])
def test_queries_among_themselves(monkeypatch, protocol_exclusion, sort_above):
    """With singletons, classes of more than 16 rows, many tiles, and large classes that are sorted."""
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: 64)
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    points, labels = sample(0, [1, 1, 2, 3, 8, 17, 40, 90])
    found = metrics.retrieval(points, labels, ks=KS, exclusion=protocol_exclusion, full_ranking=True)
    wanted = expected(brute.distances(points, points, "cosine"), labels, labels, exclusion=protocol_exclusion)
    assert {key: found[key] for key in wanted} == wanted
    plain = metrics.retrieval(points, labels, ks=KS, exclusion=protocol_exclusion)
    added = found.keys() - plain.keys()
    assert {key.removesuffix("_stderr") for key in added} == {
        "map",
        *(f"{n}@{k}" for n in ("precision", "map") for k in KS),
    }
    assert plain == pytest.approx({key: found[key] for key in plain}, rel=1e-12)


def test_separate_gallery_with_names_as_labels():
    """Strings give the metrics of integers, from arrays, lists and pandas' arrays of objects, in both directions."""
    points, labels = sample(1, [3, 4, 5, 20, 60])
    queries, gallery = slice(0, 30), slice(30, None)
    names = np.array(["ant", "bee", "cat", "dog", "eel"])[labels]
    options = {"ks": KS, "gallery": points[gallery], "full_ranking": True}
    found = metrics.retrieval(points[queries], names[queries].tolist(), gallery_labels=names[gallery], **options)
    wanted = expected(brute.distances(points[queries], points[gallery], "cosine"), labels[queries], labels[gallery])
    assert {key: found[key] for key in wanted} == wanted
    numbers = metrics.retrieval(points[queries], labels[queries], gallery_labels=labels[gallery], **options)
    assert found == numbers
    objects = metrics.retrieval(
        points[queries], names[queries].astype(object), gallery_labels=names[gallery], **options
    )
    assert objects == numbers
    with pytest.raises(DataError, match="give both as strings or both as integers"):
        metrics.retrieval(points[queries], labels[queries], gallery_labels=names[gallery], **options)


def test_names_in_all_metrics_of_a_split():
    points, labels = sample(2, [4, 5, 6])
    names = np.array(["ant", "bee", "cat"])[labels]
    options = {"ks": (1,), "full_ranking": True}
    assert protocol.evaluate(points, names, **options) == protocol.evaluate(points, labels, **options)


def test_ranked_lists_agree():
    points, labels = sample(3, [2, 5, 9])
    order = np.argsort(brute.distances(points, points, "cosine") + 9 * np.eye(16), axis=1)[:, :-1]
    found = metrics.retrieval(points, labels, ks=(1, 4))
    assert metrics.of_ranked_lists(order, labels.astype(str), ks=(1, 4)) == pytest.approx(found)
