"""Retrieval by brute force in NumPy float64: the full distance matrix, a stable sort and the textbook definitions."""

import numpy as np


def distances(queries, gallery, metric):
    """Distances of all pairs, float64 [Q, G]."""
    queries, gallery = np.asarray(queries, np.float64), np.asarray(gallery, np.float64)
    if metric == "cosine":
        queries, gallery = (
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300) for x in (queries, gallery)
        )
        return 1 - queries @ gallery.T
    return np.sqrt(((queries[:, None] - gallery[None]) ** 2).sum(-1))


def retrieval(distances, labels, gallery_labels, ks, *, exclusion=None, excluded=None):
    """Metrics from distances [Q, G].

    Query i excludes candidate i (`exclusion` is "index"), its nearest ("position"), candidate `excluded[i]` unless it
    is -1, or none.
    """
    first, precision, average = [], [], []
    for i, row in enumerate(distances):
        order = np.lexsort((np.arange(len(row)), row))
        if exclusion == "index":
            order = order[order != i]
        elif exclusion == "position":
            order = order[1:]
        elif excluded is not None:
            order = order[order != excluded[i]]
        hits = gallery_labels[order] == labels[i]
        relevant = int((gallery_labels == labels[i]).sum()) - (len(row) - len(order))
        first.append(int(np.argmax(hits)) + 1 if hits.any() else 0)
        top = hits[:relevant]
        precisions = np.cumsum(top) / np.arange(1, len(top) + 1)
        precision.append(top.mean() if relevant else np.nan)
        average.append((precisions * top).sum() / relevant if relevant else np.nan)
    first = np.array(first)
    result = {f"recall@{k}": float(((first > 0) & (first <= k)).mean()) for k in ks}
    result["r_precision"], result["map@r"] = float(np.nanmean(precision)), float(np.nanmean(average))
    result["lone_queries"] = int(np.isnan(precision).sum())
    return result, first, np.array(precision), np.array(average)


def far_groups(dtype=np.float32):
    """400 rows of 20 classes, each in one of ten groups that are much farther apart than the rows of a group."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 20
    points = 1e4 * np.sign(rng.normal(size=(10, 8)))[labels % 10] + rng.normal(size=(20, 8))[labels]
    return (points + 0.3 * rng.normal(size=points.shape)).astype(dtype), labels


def narrow_cone(spread=1e-4):
    """400 rows float64 of 20 classes, in nearly the same direction."""
    rng = np.random.default_rng(1)
    labels = np.arange(400) % 20
    return 1 + spread * (rng.normal(size=(20, 16))[labels] + 0.7 * rng.normal(size=(400, 16))), labels
