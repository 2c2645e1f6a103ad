"""What anchors are compared with, against float64 NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.losses import pairwise
from tests.losses.ten_rows import LABELS, NEGATIVE, POSITIVE, X


def test_what_anchors_are_compared_with() -> None:
    """The batch or other candidates; rows of unit length unless told otherwise."""
    x, others = np.float32(3 * X), np.float32(2 * X[:4])
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    candidates = pairwise.Candidates(others, jnp.asarray(POSITIVE[:, :4]), jnp.asarray(NEGATIVE[:, :4]))
    for normalize, anchors, compared in ((True, unit, unit[:4]), (False, 3 * X, 2 * X[:4])):
        compare = jax.jit(partial(pairwise.compared, normalize=normalize))
        found, batch = compare(x, LABELS, None)
        np.testing.assert_allclose(found, anchors, rtol=1e-5)
        np.testing.assert_array_equal(batch.embeddings, found)
        np.testing.assert_array_equal(batch.positive, POSITIVE)
        found, given = compare(x, LABELS, candidates)
        np.testing.assert_allclose(found, anchors, rtol=1e-5)
        np.testing.assert_allclose(given.embeddings, compared, rtol=1e-5)
        np.testing.assert_array_equal(given.negative, NEGATIVE[:, :4])
