"""Embeddings averaged over flips and scales, compared with images that Pillow has flipped and resized."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dml_jax.train import embedding

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3)).astype(np.uint8)


def projected(params: Any, model_state: Any, images: jax.Array) -> jax.Array:
    """Sums of the pixels of any size, weighted by their place; not of unit length."""
    across, down = (jnp.linspace(0, 1, side) for side in (images.shape[2], images.shape[1]))
    places = jnp.stack([across[None] + 0 * down[:, None], down[:, None] ** 2 + 0 * across[None]])
    return jnp.einsum("bhwc,phw->bpc", images / 255, places).reshape(len(images), 6)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("flip", [False, True])
def test_the_mean_over_versions(flip: bool) -> None:
    averaged = jax.jit(embedding.averaged(projected, flip=flip, scales=(1.0, 2.0, 0.5)))
    total = np.zeros((3, 6))
    for size in ((12, 8), (24, 16), (6, 4)):
        resized = np.stack(
            [np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)) for image in IMAGES]
        )
        for version in (resized, resized[:, :, ::-1])[: 1 + flip]:
            total += unit(np.asarray(projected({}, {}, jnp.asarray(version))))
    found = np.asarray(averaged({}, {}, jnp.asarray(IMAGES)))
    np.testing.assert_allclose(found, unit(total), atol=2e-3)  # pixels may round to the next number
    if flip:
        np.testing.assert_allclose(averaged({}, {}, jnp.asarray(IMAGES[:, :, ::-1])), found, atol=2e-3)
