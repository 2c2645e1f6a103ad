"""Embeddings averaged over flips and scales, compared with images that Pillow has flipped and resized."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dml_jax import config as configs
from dml_jax.train import embedding
from dml_jax.train.model import build_method
from tests import toys
from tests.train.experiments import values

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


def test_options_of_the_evaluation() -> None:
    """Of the method of a run, and so of its evaluation and of the model that is loaded from it."""
    config = configs.resolve(values(steps=1))
    evaluation = replace(config.evaluation, flip=True, scales=(1.0, 2.0))
    plain, method = (build_method(c, toys.training_set(5)) for c in (config, replace(config, evaluation=evaluation)))
    params, model_state = plain.init(jax.random.key(0), toys.batch(1))
    images = toys.batch(1).images[0]
    expected = embedding.averaged(plain.embed, flip=True, scales=(1.0, 2.0))(params, model_state, images)
    np.testing.assert_allclose(method.embed(params, model_state, images), expected, atol=1e-6)
    assert float(jnp.abs(expected - plain.embed(params, model_state, images)).max()) > 1e-3
