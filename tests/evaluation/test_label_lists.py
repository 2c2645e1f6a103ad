"""Labels in lists and arrays of objects are looked at before NumPy joins their types, wherever they
are given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dml_jax import losses
from dml_jax.data import samplers
from dml_jax.errors import DataError
from dml_jax.evaluation import metrics

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
USERS: dict[str, Callable[[Any], Any]] = {
    "metric": lambda y: metrics.retrieval(X, y, ks=1)["recall@1"],
    "sampler": lambda y: samplers.balanced(y, 4, images_per_class=2, seed=0).batch(0),
    "loss": lambda y: np.asarray(losses.contrastive(X, y)),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"] * 11 + [float("nan")], "row 11 has no label, but nan; leave the row out"),
        (["a"] * 11 + [None], "row 11 has no label, but None"),
        (np.array(["a"] * 11 + [np.nan], object), "row 11 has no label, but nan"),
        ([1, "1", "b"] * 4, "row 0 holds 1 and row 1 '1'; give all as integers or all as text"),
    ],
)
def test_missing_and_mixed_labels(user: str, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"labels: {message}"):
        USERS[user](labels)


@pytest.mark.parametrize("user", USERS)
def test_equal_labels_in_other_forms(user: str) -> None:
    expected = USERS[user](np.array([0, 1] * 6))
    for labels in (
        [*"ab"] * 6,
        np.array([*"ab"] * 6, object),
        np.array([0, 1] * 6, object),
        [np.int64(0), 1] * 6,
        [2**63, 2**63 + 1] * 6,
    ):
        np.testing.assert_array_equal(USERS[user](labels), expected)
