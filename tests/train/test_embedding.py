"""Embedding the images of a split, and versions of them."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dml_jax.errors import DataError
from dml_jax.train import embedding
from dml_jax.train import experiment as experiments
from tests.train.experiments import small


@pytest.mark.parametrize("total", [1, 447, 448, 449, 896])
def test_each_image_is_read_once_in_order(total: int) -> None:
    """Whatever the last batch holds; the function returns the pixels."""
    experiment = experiments.build(small(steps=1))
    whole = experiment.splits["test"]
    read: list[int] = []
    split = whole._replace(labels=whole.labels[:total], read=lambda i, rng: (read.append(i), whole.read(i, rng))[1])
    state: Any = SimpleNamespace(params={}, model_state={})
    embedder = experiment.embedder(lambda params, model_state, images: images.reshape(len(images), -1))
    found = embedder.embed_split(state, split)
    assert sorted(read) == list(range(total))
    np.testing.assert_array_equal(found, [whole.read(i, None).ravel() for i in range(total)])


@pytest.mark.parametrize("size", [23, 999])
def test_an_image_that_does_not_fit_is_named(size: int) -> None:
    experiment = experiments.build(small(steps=1))
    whole = experiment.splits["test"]
    split = whole._replace(read=lambda i, rng: np.zeros((3 if i == 7 else 24, size if i == 7 else 24, 3), np.uint8))
    state: Any = SimpleNamespace(params={}, model_state={})
    with pytest.raises(DataError, match=rf"^{whole.ids[7]}: is {size}x3 pixels, but the model takes images of 24x24"):
        experiment.embedder(lambda params, model_state, images: images[:, 0, 0]).embed_split(state, split)


@pytest.mark.parametrize("host", [0, 1])
def test_each_process_reads_its_share(host: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two processes reads its half of every batch and of the padding, and embeds the whole batch."""
    experiment = experiments.build(small(steps=1))
    whole, read = experiment.splits["test"], []
    split = whole._replace(labels=whole.labels[:600], read=lambda i, rng: (read.append(i), whole.read(i, rng))[1])
    shares: list[np.ndarray] = []

    def joined(sharding: Any, images: np.ndarray) -> np.ndarray:
        shares.append(images)
        return np.concatenate([images, images])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: host)
    monkeypatch.setattr(jax, "make_array_from_process_local_data", joined)
    embedder = experiment.embedder(experiment.method.embed)
    embedder = embedder._replace(on_all_devices=lambda *inputs: inputs[2].reshape(448, -1))
    state: Any = SimpleNamespace(params=None, model_state=None)
    rows = embedder.embed_split(state, split)
    first = [*range(224 * host, 224 * (host + 1))]
    rest = [*range(448, 600)] if host == 0 else []  # only padding
    assert sorted(read) == first + rest
    assert [share.shape for share in shares] == [(224, 24, 24, 3)] * 2
    assert rows.shape == (600, 24 * 24 * 3)
    np.testing.assert_array_equal(rows[0].reshape(24, 24, 3), whole.read(first[0], None))


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
