"""Augmentation on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.config import Data
from dml_jax.data import augment

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 64, 6, 5, 3), dtype=np.uint8)
applied = jax.jit(augment.apply, static_argnums=2)


def test_defaults_change_nothing() -> None:
    np.testing.assert_array_equal(augment.apply(jnp.asarray(IMAGES), jax.random.key(0), Data()), IMAGES)


def test_each_image_of_each_view_is_flipped_independently() -> None:
    flipped = np.asarray(applied(IMAGES, jax.random.key(1), Data(flip=0.5)))
    mirrored = (flipped == IMAGES[:, :, :, ::-1]).all((2, 3, 4))
    same = (flipped == IMAGES).all((2, 3, 4))
    assert (mirrored ^ same).all()
    assert 40 < mirrored.sum() < 88
    assert (mirrored[0] != mirrored[1]).any()


def test_greyscale_matches_pillow() -> None:
    from PIL import Image

    grey = np.asarray(applied(IMAGES[0], jax.random.key(0), Data(greyscale=1.0)))
    pillow = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in IMAGES[0]])
    assert np.abs(grey[..., 0].astype(int) - pillow).max() <= 1
    assert (grey == grey[..., :1]).all()


def test_jitter_with_known_factors() -> None:
    values, one, jitter = (IMAGES[0, :1].astype(np.float32), np.ones((1, 1, 1, 1), np.float32), jax.jit(augment.jitter))
    np.testing.assert_allclose(jitter(values, one, one, one), values, atol=1e-4)
    np.testing.assert_allclose(jitter(values, 0.5 * one, one, one), values / 2, atol=1e-4)
    weights = np.array([0.299, 0.587, 0.114])
    grey = IMAGES[0, :1] @ weights
    flat = jitter(values, one, 0 * one, one)
    np.testing.assert_allclose(flat, np.full(flat.shape, grey.mean()), rtol=1e-5)
    np.testing.assert_allclose(jitter(values, one, one, 0 * one), np.repeat(grey[..., None], 3, -1), rtol=1e-5)
    drawn = applied(IMAGES, jax.random.key(0), Data(jitter=0.4))
    assert drawn.dtype == jnp.uint8
    assert (np.asarray(drawn) != IMAGES).mean() > 0.5


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_erased_boxes_are_rectangles_of_the_fill_value(probability: float) -> None:
    inputs = jnp.full((40, 16, 12, 3), -3.0)
    erased = np.asarray(jax.jit(augment.erase, static_argnums=2)(inputs, jax.random.key(0), probability))
    masks = erased[..., 0] != -3
    assert masks.any((1, 2)).mean() == probability
    np.testing.assert_allclose(erased[masks], np.broadcast_to(np.float32(augment.ERASED), erased[masks].shape))
    for mask in masks[masks.any((1, 2))]:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert mask.sum() == len(rows) * len(columns)
        assert np.ptp(rows) + 1 == len(rows) < 16
        assert np.ptp(columns) + 1 == len(columns) < 12
