"""The heat maps of CRT against loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.methods.crt import figures


def test_correlations_of_prototypes() -> None:
    rng = np.random.default_rng(0)
    prototypes, maps = rng.normal(size=(3, 4)), rng.normal(size=(2, 2, 3, 4))
    found = np.asarray(figures.correlations(jnp.asarray(prototypes), jnp.asarray(maps)))
    for n, i, j, k in np.ndindex(2, 2, 3, 3):
        assert found[n, i, j, k] == pytest.approx(
            np.log1p(np.exp(maps[n, i, j] @ prototypes[k])), rel=1e-5
        )
    flat = found.copy()
    flat[..., 1] = 4.0
    assert figures.most_selective(flat, 2).tolist() == [0, 2]
