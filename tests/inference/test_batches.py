"""Batches of few sizes over all devices, images of every kind, reading ahead within bounds."""

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dml_jax.data import read_ahead
from dml_jax.errors import DataError
from tests.data import pictures
from tests.tiny_model import DIM, SIDE, Tiny


def crops(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


def test_small_inputs_compile_small_programs() -> None:
    """Each of the batch sizes 1, 2, 4, … is compiled when it is first needed, and no other."""
    model, images = Tiny(batch=32), crops(70)
    for count, compiled in ((1, [1]), (1, []), (3, [4]), (4, []), (2, [2]), (17, [32]), (70, [8]), (64, [])):
        model.compiled.clear()
        rows = model.embed(list(images[:count]))
        assert [shape[0] for shape in model.compiled] == compiled, count
        assert (rows.shape, rows.dtype) == ((count, DIM), np.float32)
        np.testing.assert_allclose(rows, model.expected(list(images[:count])), atol=1e-6)


def test_batches_are_divided_among_the_devices() -> None:
    """Eight devices give the embeddings of one, up to rounding; inputs smaller than their number
    use one of them."""
    assert jax.device_count() == 8
    model = Tiny(batch=30)
    for count, rows, devices in ((1, 1, 1), (4, 4, 1), (5, 8, 8), (12, 16, 8), (30, 32, 8), (33, 40, 8)):
        started = model._embedder.start(model.trained, crops(count))
        assert (len(started), len(started.sharding.device_set)) == (rows, devices)
    images = list(crops(32))
    rows = model.embed_pixels(np.stack([model.read(image) for image in images]))
    np.testing.assert_allclose(rows, model.expected(images), atol=1e-6)


@pytest.mark.parametrize("count", [2, 16])
def test_a_row_does_not_depend_on_the_others(count: int) -> None:
    model, images, others = Tiny(batch=16), crops(count), crops(count, seed=1)
    others[1] = images[1]
    np.testing.assert_array_equal(model.embed_pixels(images)[1], model.embed_pixels(others)[1])


def test_images_of_every_kind(tmp_path: Path) -> None:
    model = Tiny()
    file = pictures.write(tmp_path / "a.jpg", 3, 40, 30)
    pixels = np.asarray(Image.open(file))
    png = pictures.encoded(4, kind="PNG")
    images: list[Any] = [file, str(file), file.read_bytes(), Image.open(file), pixels, png, Image.open(io.BytesIO(png))]
    rows = model.embed(images * 3)
    expected = model.expected([pixels] * 5 + [pictures.pixels(4)] * 2)
    np.testing.assert_allclose(rows, np.tile(expected, (3, 1)), atol=1e-6)
    np.testing.assert_allclose(model.embed(crops(3)), model.expected(list(crops(3))), atol=1e-6)
    grey = crops(1)[0, :, :, 0]
    as_rgb = np.stack([grey, grey, grey], axis=-1)
    np.testing.assert_allclose(model.embed([grey]), model.expected([as_rgb]), atol=1e-6)


class Shuffled:
    """Like a shuffled column of a table of pandas: indexed by label, iterated in its order."""

    def __init__(self, rows: list[np.ndarray]):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, label: int) -> np.ndarray:
        return self._rows[::-1][label]

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self._rows)


def test_images_are_embedded_in_the_order_of_their_container() -> None:
    images = list(crops(5))
    shuffled: Any = Shuffled(images)
    np.testing.assert_allclose(Tiny().embed(shuffled), Tiny().expected(images), atol=1e-6)


def test_embeddings_that_are_not_finite(tmp_path: Path) -> None:
    """They are the model's fault, and an error even where bad images are left out, whose rows do
    not matter."""

    def embed(params: Any, model_state: Any, images: jax.Array, /) -> jax.Array:
        return jnp.ones((len(images), 3)).at[:, 2].divide(images.max((1, 2, 3)))  # infinite for a black image

    model = Tiny()
    model._use(model.trained._replace(method=model.trained.method._replace(embed=embed)))
    good, black = np.full((SIDE, SIDE, 3), 255, np.uint8), np.zeros((SIDE, SIDE, 3), np.uint8)
    file = tmp_path / "black.png"
    Image.fromarray(black).save(file)
    bad: list[DataError] = []
    (rows,) = model.embed_each([[good, b"no", good]], bad.append)
    assert (np.isnan(rows).all(axis=1).tolist(), len(bad)) == ([False, True, False], 1)
    remedy = "the model's embedding is not finite; use another checkpoint, or leave the image out$"
    for images, name in (([good] * 5 + [black], "image 5"), ([black], "image 0"), ([good, file], file), ([file], file)):
        with pytest.raises(DataError, match=f"^{name}: {remedy}"):
            model.embed(images)
        with pytest.raises(DataError, match=f"^{str(name).partition(' ')[0]}: {remedy}"):
            list(model.embed_each([images], bad.append))
    assert len(bad) == 1


def test_groups_are_read_ahead_within_bounds() -> None:
    """Endless groups: only a few batches are read before the first is there. Those of bad images
    are NaN."""
    model, read = Tiny(batch=8), itertools.count()
    largest = 0

    def reader(i: int) -> np.ndarray:
        nonlocal largest
        largest = max(largest, next(read))
        if i % 10 == 7:
            raise DataError(f"{i}: is bad")
        return np.full((SIDE, SIDE, 3), i % 256, np.uint8)

    groups = (range(start, start + 20) for start in itertools.count(20, 20))
    bad: list[str] = []
    for start, rows in zip(
        range(20, 200, 20), model._embedder.stream(model.trained, reader, groups, on_bad=bad.append), strict=False
    ):
        assert np.isnan(rows).all(axis=1).nonzero()[0].tolist() == [7, 17]
        images = [np.full((SIDE, SIDE, 3), i, np.uint8) for i in range(start, start + 20)]
        good = [i for i in range(20) if i % 10 != 7]
        np.testing.assert_allclose(rows[good], model.expected([images[i] for i in good]), atol=1e-6)
        assert largest < start + 8 * (read_ahead.AHEAD + 2)
    assert [str(error) for error in bad[:3]] == ["27: is bad", "37: is bad", "47: is bad"]
    with pytest.raises(DataError, match=r"^27: is bad"):
        next(model._embedder.stream(model.trained, reader, [range(20, 40)]))
