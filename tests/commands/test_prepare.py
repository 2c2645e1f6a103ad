"""The command `dml-jax prepare`: results, invalid input, unusable images and interruptions."""

import io
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_jax import seal
from dml_jax.commands import prepare, verify
from dml_jax.config import Data
from dml_jax.console import Console
from dml_jax.data import cores, decode, duplicates, formats, preparation, prepared_data
from dml_jax.data.checked_images import check_images
from dml_jax.data.files import Entry, File
from dml_jax.data.formats import cub, folder
from tests.commands.conftest import Execute, Fails
from tests.data import layouts, pictures

PHOTOS, OUT = Path("photos"), Path("out")
OPTIONS = ("--name=folder", f"--source={PHOTOS}", f"--output={OUT}")


@pytest.fixture
def prepared(execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Prepares the photos here, which must succeed: what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> str:
        code, out, err = execute(prepare, *OPTIONS, *options)
        assert (code, err) == (0, "")
        return out

    return run


def manifest() -> bytes:
    return (OUT / seal.MANIFEST).read_bytes()


def test_a_finished_data_set_is_left_unchanged(prepared: Callable[..., str], execute: Execute, fails: Fails) -> None:
    layouts.photos(PHOTOS)
    out = prepared()
    assert "train: 6 images of 2 classes\ntest: 6 images of 2 classes\nsha256 " in out
    assert out.endswith("\nwritten: out; use with --config.data.name=folder --config.data.path=out\n")
    before = manifest()
    assert "is already prepared" in prepared()
    assert manifest() == before
    assert "was prepared with another short_side" in fails(prepare, *OPTIONS, "--short_side=16")
    assert execute(verify, OUT)[0] == 0


def test_each_image_is_checked_once_on_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = layouts.photos(tmp_path)  # 12 images
    splits = {"elm": "train", "oak": "train", "Öl bäume": "test", "yew": "test"}
    entries = [Entry(p.name, File(p), p.parent.name, splits[p.parent.name]) for p in sorted(photos.rglob("*.jpg"))]
    entries = [entry._replace(id=f"{entry.class_name}/{entry.id}") for entry in entries]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4), raising=False)
    monkeypatch.setattr(cores, "CPU_QUOTA", tmp_path / "none")
    stored, threads = [], threading.Barrier(4)

    def store(entry: Entry, data: bytes, pixels: np.ndarray) -> File:
        threads.wait(60)  # until as many threads as cores have arrived
        stored.append((entry, data))
        np.testing.assert_array_equal(pixels, decode.rgb(data))
        return entry.file

    checked = check_images(entries, folder.RECIPE, pytest.fail, store=store)
    assert sorted(stored) == [(entry, entry.file.read()) for entry in checked.entries]
    assert checked.entries == entries


def test_all_unusable_images_are_listed(prepared: Callable[..., str], execute: Execute) -> None:
    layouts.photos(PHOTOS, each=4)
    pictures.write(PHOTOS / "alone/1.jpg", 4)
    oak, good, bomb = PHOTOS / "oak", pictures.encoded(1), io.BytesIO()
    Image.new("L", (12_000, 9_000)).save(bomb, "PNG")
    (oak / "empty.jpg").write_bytes(b"")
    (oak / "cut.jpg").write_bytes(good[: len(good) // 2])
    (oak / "one.png").write_bytes(pictures.encoded(2, 1, 1, "PNG"))
    (oak / "huge.png").write_bytes(bomb.getvalue())
    (oak / "link.jpg").symlink_to("nowhere.jpg")
    expected = {
        "alone/1.jpg": "the only image of its class 'alone'",
        "oak/cut.jpg": "damaged",
        "oak/empty.jpg": "not an image",
        "oak/huge.png": "more than 89478485 pixels",
        "oak/link.jpg": "missing",
        "oak/one.png": "only 1x1 pixels",
    }
    code, out, err = execute(prepare, *OPTIONS, "--strict")
    assert (code, OUT.exists()) == (2, False)
    assert err.startswith("error: --source=photos: 6 of 22 images cannot be used (listed above)")
    for name, reason in expected.items():
        assert f"\nunusable: {name}: {reason}" in f"\n{out}"
    assert "left out: 6 of 22 images" in prepared()
    about = json.loads(manifest())["about"]
    assert [name for name, _ in about["skipped"]] == [*expected]
    assert sum(split["images"] for split in about["splits"].values()) == 16


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named_while_images_are_encoded(tmp_path: Path) -> None:
    file = pictures.write(tmp_path / "1.jpg", 1)
    entry, data = Entry("1.jpg", File(file), "oak", "train"), file.read_bytes()
    full = pytest.raises(OSError, match="No space left on device: '/dev/full'")
    with full, preparation.storing(Path("/dev/full"), 0, True) as store:
        store(entry, data, np.zeros((9, 9, 3), np.uint8))


@pytest.mark.parametrize("when", ["checking images", "writing images"])
def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path, when: str) -> None:
    """And starts again."""

    class Interrupted(Console):
        def start_progress(self, what: str, total: int) -> None:
            if what == when:
                raise KeyboardInterrupt
            super().start_progress(what, total)

    request = preparation.Request("cub", (layouts.cub(tmp_path),), tmp_path / "out", subset=True)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        preparation.prepare(request, cub.RECIPE, Interrupted(active=False))
    assert sorted(tmp_path.iterdir()) == before
    preparation.prepare(request, cub.RECIPE, Console(active=False))
    seal.read(request.output, prepared_data.KIND)


def test_duplicates_are_reported(prepared: Callable[..., str]) -> None:
    """An exact copy, equal pixels and resized copies, in a class and across splits."""
    layouts.photos(PHOTOS / "train", ("a", "b"))
    layouts.photos(PHOTOS / "test", ("c", "d"), seed=800)
    (PHOTOS / "train/a/copy.jpg").write_bytes((PHOTOS / "train/a/1.jpg").read_bytes())
    Image.open(PHOTOS / "train/a/1.jpg").save(PHOTOS / "train/a/same.png")
    for name, to in (("train/b/1.jpg", "test/c/again.jpg"), ("test/d/0.jpg", "test/d/large.jpg")):
        picture = Image.open(PHOTOS / name)
        picture.resize((picture.width * 2, picture.height * 2)).save(PHOTOS / to, quality=80)
    lines = prepared().splitlines()
    assert {
        "duplicates within a class: 2", "near duplicates within a class: 1",
        "near duplicates across splits and classes: 1",
    } <= {*lines}  # fmt: skip
    assert (OUT / duplicates.TABLE).read_text().splitlines() == [
        "kind,where,first,second",
        "near duplicates,across splits and classes,test/c/again.jpg,train/b/1.jpg",
        "duplicates,within a class,train/a/1.jpg,train/a/copy.jpg",
        "duplicates,within a class,train/a/1.jpg,train/a/same.png",
        "near duplicates,within a class,test/d/0.jpg,test/d/large.jpg",
    ]


def test_equal_images_in_two_classes_are_reported_and_kept(
    prepared: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layouts.photos(PHOTOS)
    shutil.copy(PHOTOS / "elm/1.jpg", PHOTOS / "oak/copied.jpg")
    shutil.copy(PHOTOS / "elm/1.jpg", PHOTOS / "elm/same class.jpg")
    Image.open(PHOTOS / "oak/2.jpg").save(PHOTOS / "yew/equal pixels.png")
    out = prepared()
    warning = (
        "warning: 2 images are in more than one class, e.g. elm/1.jpg (class elm) = "
        "oak/copied.jpg (class oak); oak/2.jpg (class oak) = yew/equal pixels.png (class yew); at "
        "most one of the labels can be right, all are kept"
    )
    assert f"{warning} and listed in duplicates.csv" in out.splitlines()
    assert [
        line for line in (OUT / duplicates.TABLE).read_text().splitlines() if line.startswith("duplicates,across")
    ] == [
        "duplicates,across splits and classes,oak/2.jpg,yew/equal pixels.png",
        "duplicates,across classes,elm/1.jpg,oak/copied.jpg",
        "duplicates,across classes,elm/same class.jpg,oak/copied.jpg",
    ]
    packed, in_place = (formats.load(Data(name="folder", path=str(path))) for path in (OUT, PHOTOS))
    assert sum(len(split.ids) for split in packed.values()) == sum(len(split.ids) for split in in_place.values()) == 15
    assert all(split.note.startswith(warning) for split in (*packed.values(), *in_place.values()))


def test_rotated_images_are_counted_and_read_either_way(prepared: Callable[..., str]) -> None:
    layouts.photos(PHOTOS, ("a", "b", "c", "d"))
    file = next(PHOTOS.rglob("*.jpg"))
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    Image.open(file).save(file, exif=exif)
    assert "EXIF rotation: 1 image (data.exif_rotation)" in prepared()
    name = str(file.relative_to(PHOTOS))
    loaded = (formats.load(Data(name="folder", path=str(OUT), exif_rotation=rotation)) for rotation in (True, False))
    parts = (next(split for split in splits.values() if name in split.ids) for splits in loaded)
    turned, stored = (split.read(list(split.ids).index(name), None) for split in parts)
    assert turned.shape[:2] == stored.shape[1::-1] != stored.shape[:2]
