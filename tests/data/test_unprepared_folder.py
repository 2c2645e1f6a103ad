"""Unprepared folders: changed images are noticed, copies are the same data set, a damaged cache is
replaced."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_jax import seal
from dml_jax.config import Data
from dml_jax.data import formats
from dml_jax.data.split import Split, cache_splits, digest, unread
from tests.data import layouts, pictures


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dml_jax" / "data"


def data_hash(folder: Path) -> str:
    splits = formats.load(Data(name="folder", path=str(folder)))
    return digest(splits)


def test_changed_pixels_under_the_same_name_change_the_hash(tmp_path: Path) -> None:
    """Even if the file keeps its size and its modification time."""
    photos = layouts.photos(tmp_path / "photos")
    file = photos / "oak" / "1.bmp"
    file.write_bytes(pictures.encoded(1, kind="BMP"))
    before, status = data_hash(photos), file.stat()
    file.write_bytes(pictures.encoded(2, kind="BMP"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert data_hash(photos) != before
    file.write_bytes(pictures.encoded(1, kind="BMP"))
    assert data_hash(photos) == before


def test_labelled_images_are_read_like_those_of_the_model(tmp_path: Path) -> None:
    """Not rotated, if its training images were not."""
    photos, exif = layouts.photos(tmp_path / "photos"), Image.Exif()
    exif[0x0112] = 6
    (photos / "oak" / "0.jpg").write_bytes(pictures.encoded(3, exif=exif))
    for upright, shape in ((True, (32, 24, 3)), (False, (24, 32, 3))):
        data = Data(name="folder", exif_rotation=upright)
        split = formats.load_labelled(photos, data)["test"]
        (index,) = (i for i, name in enumerate(split.ids) if name.endswith("oak/0.jpg"))
        assert split.read(index, None).shape == shape


def test_copies_have_the_same_hash(tmp_path: Path) -> None:
    photos = layouts.photos(tmp_path / "photos")
    shutil.copytree(photos, tmp_path / "copy", copy_function=shutil.copyfile)
    for file in (tmp_path / "copy").rglob("*.jpg"):
        os.utime(file, (1, 1))
    before = data_hash(photos)
    assert data_hash(tmp_path / "copy") == before
    for file in photos.rglob("*.jpg"):
        os.utime(file)
    assert data_hash(photos) == before
    (photos / "oak").rename(photos / "oaks")
    assert data_hash(photos) != before


class Computed(Exception):
    """Raised where splits are computed instead of read from the cache."""


def compute() -> dict[str, Split]:
    raise Computed


def test_every_flipped_bit_of_the_cache_is_noticed(cache: Path) -> None:
    """Or without effect, as in the white space of the manifest."""
    splits = {"test": Split(np.arange(40) // 4, [f"{i}.jpg" for i in range(40)], unread, [*"abcdefghij"])}
    cache_splits(b"key", lambda: splits)
    [sealed] = cache.iterdir()
    bits = [(file, bit) for file in sealed.iterdir() for bit in range(8 * file.stat().st_size)]
    rng, computed = np.random.default_rng(0), 0
    for i in rng.choice(len(bits), 400, replace=False):
        file, bit = bits[i]
        whole = file.read_bytes()
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            assert (digest(cache_splits(b"key", compute)), file.name) == (digest(splits), seal.MANIFEST)
        except Computed:
            computed += 1
        file.write_bytes(whole)
    assert computed > 300


@pytest.mark.parametrize("name", ["splits.json", seal.MANIFEST])
def test_a_damaged_cache_is_replaced(cache: Path, name: str) -> None:
    splits = {"test": Split(np.arange(4) // 2, [*"wxyz"], unread, [*"ab"])}
    for content in (b"", b"PK\x03\x04", b"{}"):
        cache_splits(b"key", lambda: splits)
        [file] = cache.glob(f"*/{name}")
        file.write_bytes(content)
        with pytest.raises(Computed):
            cache_splits(b"key", compute)
        cache_splits(b"key", lambda: splits)
        assert digest(cache_splits(b"key", compute)) == digest(splits)


def test_a_cache_that_cannot_be_written_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert data_hash(layouts.photos(tmp_path / "photos"))


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    photos = layouts.photos(tmp_path / "photos")
    os.mkfifo(photos / "oak" / "odd.jpg")
    note = formats.load(Data(name="folder", path=str(photos)))["test"].note
    assert "left out: oak/odd.jpg: not a regular file of at most 256 MiB" in note
