"""Labels and weights of other types give the same loss."""

import jax
import numpy as np
import pytest

from tests.losses.references import LABELS, X, by_default

# All losses have one decorator. What it does with arrays differs between these: with tables, with
# one and mining, on pairs, drawn.
KINDS = ("cross_entropy", "margin", "contrastive", "n_pair")


@pytest.mark.parametrize("name", KINDS)
def test_labels_and_weights_of_other_types(name: str) -> None:
    """Lists, narrow types, text (also in arrays of objects, as pandas has it), and integers that
    are equal in the lower 32 bits; the latter two are classes of no table."""
    text, wide, weights = list("cccddfffpppm"), LABELS.astype(np.int64), np.arange(12)
    kinds = [(LABELS, weights), (LABELS.astype(np.uint8), weights.astype(np.float16))]
    kinds += [(LABELS.tolist(), weights.tolist())]
    if name in ("contrastive", "n_pair"):
        large = (wide * 2**32, wide.astype(np.uint64) * 2**61, -wide * 2**40)
        kinds += [(labels, weights) for labels in (text, np.array(text, object), *large)]

    @jax.jit
    def every(x: jax.Array, labels: jax.Array, weights: jax.Array) -> list[jax.Array]:
        loss = by_default(name)
        return [loss(x, y, weights=w) for y, w in ((labels, weights), *kinds)]

    expected, *found = every(X, LABELS, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
