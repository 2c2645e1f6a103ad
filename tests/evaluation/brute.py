"""Retrieval by brute force in NumPy float64: the full distance matrix, a stable sort and the
textbook definitions; and embeddings for it."""

import numpy as np
import pytest


def distances(queries, gallery, metric):
    """Distances of all pairs, float64 [Q, G]."""
    queries, gallery = np.asarray(queries, np.float64), np.asarray(gallery, np.float64)
    if metric == "cosine":
        unit = lambda x: x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)  # noqa: E731
        queries, gallery = unit(queries), unit(gallery)
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
    lone = np.isnan(values[0])
    means = {f"recall@{k}": float(((first > 0) & (first <= k)).mean()) for k in ks}
    means["mrr"] = float(np.where(first > 0, 1 / np.maximum(first, 1), 0).mean())
    means["lone_queries"] = int(lone.sum())
    each = {"rank": first}
    for name, column in zip(("r_precision", "map@r"), values, strict=True):
        means[name] = float(column[~lone].mean()) if not lone.all() else np.nan
        each[f"{name}_per_query"] = column
    if labels is not None:
        of_class = [(first[labels == label] == 1).mean() for label in np.unique(labels)]
        means["macro_recall@1"] = float(np.mean(of_class))
    return means, each


def check(found, expected):
    """Checks metrics, with values per query if there are any, against those of `retrieval`."""
    means, each = expected
    assert {"r_precision", "map@r", "lone_queries"} <= found.keys() & means.keys()
    for name in found.keys() & each.keys():
        np.testing.assert_allclose(found[name], each[name], rtol=1e-12, err_msg=name)
    common = {name: value for name, value in means.items() if name in found}
    assert {name: found[name] for name in common} == pytest.approx(common, rel=1e-12, nan_ok=True)


SIZES = (1, 1, 2, 3, 5, 8, 13, 40, 90)


def sample(seed, sizes=SIZES, width=16, *, spread=1.5, shuffled=True, copies=0):
    """Embeddings around class means, and labels; `copies` rows are exact copies of others."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if shuffled:
        labels = rng.permutation(labels)
    means = rng.normal(size=(len(sizes), width))
    points = (means[labels] + spread * rng.normal(size=(len(labels), width))).astype(np.float32)
    points[rng.permutation(len(points))[:copies]] = points[rng.permutation(len(points))[:copies]]
    return points, labels


def far_groups(dtype=np.float32):
    """168 rows of 21 classes, each in one of ten groups that are much farther apart than the rows of a group."""
    rng = np.random.default_rng(0)
    labels = np.arange(168) % 21
    groups = 1e4 * np.sign(rng.normal(size=(10, 14)))[labels % 10]
    points = groups + rng.normal(size=(21, 14))[labels]
    return (points + 0.3 * rng.normal(size=points.shape)).astype(dtype), labels


def narrow_cone(spread=1e-4, count=168):
    """Rows float64 of 21 classes, in nearly the same direction."""
    rng = np.random.default_rng(1)
    labels = np.arange(count) % 21
    noise = rng.normal(size=(21, 16))[labels] + 0.7 * rng.normal(size=(count, 16))
    return 1 + spread * noise, labels
