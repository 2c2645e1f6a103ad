"""What the device does to training images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.config import Data
from dml_jax.data import augment

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 64, 6, 5, 3), dtype=np.uint8)


def test_nothing_asked_nothing_done() -> None:
    assert augment.images(jnp.asarray(PIXELS), jax.random.key(0), Data()) is not None
    np.testing.assert_array_equal(augment.images(jnp.asarray(PIXELS), jax.random.key(0), Data()), PIXELS)


def test_each_image_of_each_view_is_flipped_for_itself() -> None:
    flipped = np.asarray(jax.jit(lambda x, key: augment.images(x, key, Data(flip=0.5)))(PIXELS, jax.random.key(1)))
    turned = (flipped == PIXELS[:, :, :, ::-1]).all((2, 3, 4))
    same = (flipped == PIXELS).all((2, 3, 4))
    assert (turned ^ same).all()
    assert 40 < turned.sum() < 88
    assert (turned[0] != turned[1]).any()


def test_all_or_none_flipped() -> None:
    always = augment.images(jnp.asarray(PIXELS), jax.random.key(0), Data(flip=1.0))
    np.testing.assert_array_equal(always, PIXELS[:, :, :, ::-1])


def test_grey_images_have_equal_channels_of_pillow_luma() -> None:
    from PIL import Image

    grey = np.asarray(augment.images(jnp.asarray(PIXELS[0]), jax.random.key(0), Data(greyscale=1.0)))
    pillow = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in PIXELS[0]])
    assert np.abs(grey[..., 0].astype(int) - pillow).max() <= 1
    assert (grey == grey[..., :1]).all()


def test_jitter_by_hand() -> None:
    values = jnp.asarray(PIXELS[0, :1], jnp.float32)
    one = jnp.ones((1, 1, 1, 1))
    np.testing.assert_allclose(augment.jitter(values, one, one, one), values, atol=1e-4)
    np.testing.assert_allclose(augment.jitter(values, 0.5 * one, one, one), values / 2, atol=1e-4)
    weights = np.array([0.299, 0.587, 0.114])
    grey = PIXELS[0, :1] @ weights
    flat = augment.jitter(values, one, 0 * one, one)
    np.testing.assert_allclose(flat, np.full(flat.shape, grey.mean()), rtol=1e-5)
    np.testing.assert_allclose(augment.jitter(values, one, one, 0 * one), np.repeat(grey[..., None], 3, -1), rtol=1e-5)
    drawn = augment.images(jnp.asarray(PIXELS), jax.random.key(0), Data(jitter=0.4))
    assert drawn.dtype == jnp.uint8
    assert (np.asarray(drawn) != PIXELS).mean() > 0.5


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_erased_boxes_hold_the_constants(probability: float) -> None:
    inputs = jnp.full((40, 16, 12, 3), -3.0)
    erased = np.asarray(augment.erase(inputs, jax.random.key(0), probability))
    gone = erased[..., 0] != -3
    assert gone.any((1, 2)).mean() == probability
    np.testing.assert_allclose(erased[gone], np.broadcast_to(np.float32(augment.ERASED), erased[gone].shape))
    for mask in gone[gone.any((1, 2))]:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert mask.sum() == len(rows) * len(columns)
        assert np.ptp(rows) + 1 == len(rows) < 16
        assert np.ptp(columns) + 1 == len(columns) < 12
