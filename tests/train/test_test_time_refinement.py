"""Test-time refinement of a split: batches drawn from clusters, what is refined with and without a gallery."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.config import Data, Evaluation
from dml_jax.errors import DataError
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.train import evaluations


def test_batches_are_chunks_of_clusters() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), [1, 2, 3, 4, 9, 16]))
    groups = evaluations.batches_from_clusters(labels, Data(batch_size=12, images_per_class=3), seed=0)
    assert groups.batches.shape[1] == groups.refined == 12
    assert set(groups.batches.ravel().tolist()) == set(range(35))
    for chunk in groups.batches.reshape(-1, 3):
        assert len(set(labels[chunk].tolist())) == 1


def test_fewer_images_than_a_batch_holds() -> None:
    groups = evaluations.batches_from_clusters(
        np.array([0, 0, 1, 1, 1]), Data(batch_size=64, images_per_class=4), seed=0
    )
    assert groups.batches.shape[1] == 8
    assert set(groups.batches.ravel().tolist()) == set(range(5))


def run(**options: Any) -> Any:
    """A configuration and a `Hooks.refine` of the documented signature: the mean of the first batch that an embedding
    heads; own batches by -1.
    """

    def refined(params: Any, state: Any, queries: Any, gallery: Any, groups: Groups | None = None) -> Any:
        if groups is None:
            return -queries
        assert gallery is None
        result = np.full_like(queries, np.nan)
        for batch in groups.batches[::-1]:
            result[batch[: groups.refined][::-1]] = queries[batch].mean(axis=0)
        return result

    data = Data(batch_size=4, images_per_class=2)
    config = SimpleNamespace(data=data, evaluation=Evaluation(**options), seed=0)
    return config, refined


STATE: Any = SimpleNamespace(params={}, model_state={})


def test_own_batches_refine_the_queries_and_groups_everything() -> None:
    points = np.eye(6, dtype=np.float32)[[0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]]
    points += np.float32(1e-3) * np.arange(12, dtype=np.float32)[:, None]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    found = {"test": points[:5], "gallery": points[5:]}
    own, facts = evaluations.refined_embeddings(*run(), STATE, "reciprocal", found)
    assert facts == {}
    np.testing.assert_array_equal(own["test"], -points[:5])
    assert own["gallery"] is found["gallery"]
    together, facts = evaluations.refined_embeddings(*run(refine_clusters=3), STATE, "ward", found)
    assert facts == {"clusters": 3, "noise": 0}
    assert [len(together[name]) for name in ("test", "gallery")] == [5, 7]
    assert not np.isnan(np.concatenate([together["test"], together["gallery"]])).any()
    chunks, facts = evaluations.refined_embeddings(*run(), STATE, "neighbors", found)
    assert facts == {}
    assert not np.isnan(np.concatenate([chunks["test"], chunks["gallery"]])).any()


def test_a_clustering_that_fails_says_so() -> None:
    with pytest.raises(DataError, match=r"evaluation\.refine=dbscan: finds 0 clusters"):
        evaluations.refined_embeddings(*run(), STATE, "dbscan", {"test": np.eye(6, dtype=np.float32)})
