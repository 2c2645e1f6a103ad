"""Hyp-ViT's loss and the Anti-Collapse loss against PyTorch in float64, and on degenerate batches."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.losses import poincare_ball

# Ten batches of embeddings, of lengths below and above the clip, with the values and gradients that PyTorch 2.13 finds
# for the formulas of the authors' code (exponential map, projection, Möbius addition, artanh) and for the log
# determinant.
REFERENCE = np.load(Path(__file__).with_name("hyperbolic_and_anti_collapse_torch.npz"))
LOSSES: dict[str, tuple[Any, dict[str, float]]] = {
    "hyperbolic": (losses.hyperbolic, {}),
    "curved": (losses.hyperbolic, {"curvature": 1.0, "clip": 1.5, "temperature": 0.5}),
    "anti_collapse": (losses.anti_collapse, {}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients(name: str, x64: None) -> None:
    loss, options = LOSSES[name]
    labels = jnp.asarray(REFERENCE["labels"])
    function = jax.jit(jax.value_and_grad(lambda x: loss(x, labels, **options)))
    for x, value, gradient in zip(REFERENCE["x"], REFERENCE[name], REFERENCE[f"{name}_gradient"], strict=True):
        found = function(jnp.asarray(x))
        np.testing.assert_allclose(found[0], value, rtol=1e-10)
        np.testing.assert_allclose(found[1], gradient, rtol=1e-7, atol=1e-10)


def test_more_rows_than_dimensions_or_fewer(x64: None) -> None:
    x = REFERENCE["x"][0]
    for rows in (x, x[:3]):
        z = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        expected = -np.linalg.slogdet(np.eye(5) + 5 / (len(z) * 0.25) * z.T @ z)[1] / 2
        found = jax.jit(losses.anti_collapse)(rows, np.arange(len(rows)))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


CHECKED = (("hyperbolic", {}), ("hyperbolic", {"curvature": 1.0, "clip": 10.0}), ("anti_collapse", {}))
DIFFERENTIATED = [jax.jit(jax.value_and_grad(partial(getattr(losses, name), **options))) for name, options in CHECKED]
DEGENERATE = {
    "zeros": np.zeros((12, 5)),
    "copies": np.tile(REFERENCE["x"][0][:1], (12, 1)),
    "very long": 1e6 * REFERENCE["x"][0],
    "very short": 1e-12 * REFERENCE["x"][0],
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("one_class", [False, True])
def test_degenerate_batches(case: str, one_class: bool) -> None:
    labels = (np.zeros(12) if one_class else REFERENCE["labels"]).astype(np.int32)
    x = DEGENERATE[case].astype(np.float32)
    expected = {"zeros": 0.0, "copies": -np.log(1 + 5 / 0.25) / 2}
    for (name, _), differentiated in zip(CHECKED, DIFFERENTIATED, strict=True):
        value, gradient = differentiated(x, labels)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        if case in expected:  # all distances are 0
            rate = np.log(11) if name == "hyperbolic" else expected[case]
            np.testing.assert_allclose(value, rate, rtol=1e-4, atol=1e-6)
    alone, _ = DIFFERENTIATED[0](x, np.arange(12, dtype=np.int32))
    assert alone == 0  # no positives


def test_distances_near_the_edge_of_the_ball(x64: None) -> None:
    """Along a diameter, the distance is the difference of 2 artanh."""
    p = np.array([[-0.9999], [0.0], [1e-9], [0.999], [0.9999]])
    expected = np.abs(2 * np.arctanh(p) - 2 * np.arctanh(p).T)
    np.testing.assert_allclose(jax.jit(poincare_ball.distances)(p, p), expected, rtol=1e-8, atol=1e-16)
