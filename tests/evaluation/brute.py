"""Retrieval by brute force in NumPy float64: the full distance matrix, a stable sort and the
textbook definitions."""

import numpy as np
import pytest


def distances(queries, gallery, metric):
    """Distances of all pairs, float64 [Q, G]."""
    queries, gallery = np.asarray(queries, np.float64), np.asarray(gallery, np.float64)
    if metric == "cosine":
        queries, gallery = (
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
            for x in (queries, gallery)
        )
        return 1 - queries @ gallery.T
    return np.sqrt(((queries[:, None] - gallery[None]) ** 2).sum(-1))


def retrieval(distances, relevant, ks, *, omitted=None, position=False, labels=None):
    """Metrics by their definitions from distances [Q, G] and the relevant pairs, bool [Q, G].

    Each query leaves out the pairs that are `omitted`, and its nearest candidate if `position`.
    Returns the means, with that over classes only if there are `labels`, and the values per query.
    """
    first, values = [], []
    for i, row in enumerate(distances):
        order = np.lexsort((np.arange(len(row)), row))
        if omitted is not None:
            order = order[~omitted[i][order]]
        hits = relevant[i][order][position:]
        first.append(1 + int(np.argmax(hits)) if hits.any() else 0)
        total = int(relevant[i][order].sum()) - position
        if not total:
            values.append([np.nan] * 2)
            continue
        precisions = hits * np.cumsum(hits) / np.arange(1, len(hits) + 1)
        values.append([hits[:total].mean(), precisions[:total].sum() / total])
    first, values = np.array(first), np.array(values).T
    means = {f"recall@{k}": float(((first > 0) & (first <= k)).mean()) for k in ks}
    means["mrr"] = float(np.where(first > 0, 1 / np.maximum(first, 1), 0).mean())
    names = ["r_precision", "map@r"]
    lone = np.isnan(values[0])
    means |= {
        name: float(each[~lone].mean()) if not lone.all() else np.nan
        for name, each in zip(names, values, strict=True)
    }
    means["lone_queries"] = int(lone.sum())
    if labels is not None:
        means["macro_recall@1"] = float(
            np.mean([(first[labels == label] == 1).mean() for label in np.unique(labels)])
        )
    each = {f"{name}_per_query": column for name, column in zip(names, values, strict=True)}
    return means, {"rank": first, **each}


def check(found, expected):
    """Checks metrics, with values per query if there are any, against those of `retrieval`."""
    means, each = expected
    assert {"r_precision", "map@r", "lone_queries"} <= found.keys() & means.keys()
    for name in found.keys() & each.keys():
        np.testing.assert_allclose(found[name], each[name], rtol=1e-12, err_msg=name)
    common = {name: value for name, value in means.items() if name in found}
    assert {name: found[name] for name in common} == pytest.approx(common, rel=1e-12, nan_ok=True)


def far_groups(dtype=np.float32):
    """168 rows of 21 classes, each in one of ten groups that are much farther apart than the rows
    of a group."""
    rng = np.random.default_rng(0)
    labels = np.arange(168) % 21
    points = (
        1e4 * np.sign(rng.normal(size=(10, 14)))[labels % 10] + rng.normal(size=(21, 14))[labels]
    )
    return (points + 0.3 * rng.normal(size=points.shape)).astype(dtype), labels


def narrow_cone(spread=1e-4, count=168):
    """Rows float64 of 21 classes, in nearly the same direction."""
    rng = np.random.default_rng(1)
    labels = np.arange(count) % 21
    return 1 + spread * (
        rng.normal(size=(21, 16))[labels] + 0.7 * rng.normal(size=(count, 16))
    ), labels
