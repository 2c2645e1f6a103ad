"""Retrieval by brute force in NumPy float64: the whole matrix, a stable sort, the definitions as printed."""

import numpy as np


def distances(queries, gallery, metric):
    """[Q, G], float64."""
    queries, gallery = np.asarray(queries, np.float64), np.asarray(gallery, np.float64)
    if metric == "cosine":
        queries, gallery = (
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300) for x in (queries, gallery)
        )
        return 1 - queries @ gallery.T
    return np.sqrt(((queries[:, None] - gallery[None]) ** 2).sum(-1))


def retrieval(far, labels, gallery_labels, ks, *, own=False, position=False):
    """Metrics of a matrix of distances [Q, G]; `own`: query i leaves out candidate i, or its first neighbour."""
    first, precision, average = [], [], []
    for i, row in enumerate(far):
        order = np.lexsort((np.arange(len(row)), row))
        if own:
            order = order[1:] if position else order[order != i]
        found = gallery_labels[order] == labels[i]
        relevant = int((gallery_labels == labels[i]).sum()) - own
        first.append(int(np.argmax(found)) + 1 if found.any() else 0)
        top = found[:relevant]
        hits = np.cumsum(top) / np.arange(1, len(top) + 1)
        precision.append(top.mean() if relevant else np.nan)
        average.append((hits * top).sum() / relevant if relevant else np.nan)
    first = np.array(first)
    result = {f"recall@{k}": float(((first > 0) & (first <= k)).mean()) for k in ks}
    result["r_precision"], result["map@r"] = float(np.nanmean(precision)), float(np.nanmean(average))
    result["lone_queries"] = int(np.isnan(precision).sum())
    return result, first, np.array(precision), np.array(average)
