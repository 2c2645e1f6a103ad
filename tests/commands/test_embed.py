"""The command that embeds folders: what is written, continued, refused, divided and left out."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dml_jax
from dml_jax import table
from dml_jax.commands import embed
from dml_jax.inference import bulk_embedding
from tests.commands.conftest import Execute
from tests.data import pictures
from tests.tiny_model import DIM, Tiny

COUNT = 20  # images, in three chunks of at most 8 rows
NO_IMAGE = "not an image (JPEG, PNG, GIF, BMP, TIFF, WEBP, AVIF, PPM)"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(COUNT):
        pictures.write(tmp_path / "photos" / f"{i:02d}.jpg", i, 20 + i % 3, 24)
    return tmp_path / "photos"


@pytest.fixture
def run(photos: Path, monkeypatch: pytest.MonkeyPatch, execute: Execute) -> Execute:
    monkeypatch.setattr(bulk_embedding, "ROWS", 8)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.setattr("dml_jax.commands.jax_setup.enable_compilation_cache", lambda: None)
    monkeypatch.chdir(photos.parent)
    return lambda *arguments: execute(embed, "--model=w", "--output=out", "--quiet", *arguments, "photos")


def stop_after(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model fails after so many files of rows, until `monkeypatch` is undone."""

    class Failing(Tiny):
        def embed_each(self, *arguments: object) -> Iterator[np.ndarray]:
            for number, rows in enumerate(super().embed_each(*arguments)):
                if number == files:
                    raise KeyboardInterrupt
                yield rows

    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Failing())


def test_the_output_and_what_follows_it(run: Execute, photos: Path) -> None:
    """A finished output is kept as long as images and model are the same."""
    code, out, err = run()
    assert (code, out, err) == (0, f"{COUNT} embeddings with {DIM} dimensions: out\n", "")
    files = sorted(photos.iterdir())
    rows = np.load("out/embeddings.npy")
    pixels = [Tiny().read(file) for file in files]
    np.testing.assert_allclose(rows, Tiny().embed_pixels(np.stack(pixels)), atol=1e-6)  # one batch, another program
    assert json.loads(Path("out/ids.json").read_text()) == [f"photos/{file.name}" for file in files]
    assert sorted(entry.name for entry in Path().iterdir()) == ["out", "photos"]

    times = {file: file.stat().st_mtime_ns for file in Path("out").iterdir()}
    assert run()[1].splitlines() == ["all images have been embedded already", out.strip()]
    assert times == {file: file.stat().st_mtime_ns for file in Path("out").iterdir()}
    code, out, err = run(f"--query={files[3]}")
    assert (code, err, out.splitlines()[2]) == (0, "", f"cosine 1.0000  photos/{files[3].name}")

    Path("out/embeddings.npy").write_bytes(b"damaged")
    where = Path("out").resolve()
    assert run()[2] == (
        f"error: {where}/embeddings.npy: has changed since it was written; delete {where}, and its "
        "images are embedded again, or give another --output\n"
    )


def read_images(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that models embed from now on."""
    names: list[str] = []

    class Reading(Tiny):
        def read(self, image: Any, name: str = "image") -> np.ndarray:
            names.append(image.name)
            return super().read(image, name)

    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Reading())
    return names


def check_as_from_scratch(run: Execute) -> None:
    """The rows, names and errors in `out` are those of a new output of the same images."""
    run("--output=new")
    assert Path("out/ids.json").read_text() == Path("new/ids.json").read_text()
    rows = [np.load(f"{name}/embeddings.npy") for name in ("out", "new")]
    np.testing.assert_allclose(*rows, atol=1e-6)  # batches of other sizes round differently
    one, other = (table.read(Path(name)) for name in ("out", "new"))
    assert (one.metadata, one.unusable) == (other.metadata, other.unusable)
    assert not Path("out.chunks").exists()
    shutil.rmtree("new")


def test_changes_of_the_images(run: Execute, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only new and changed contents are embedded, deleted images are dropped, unusable ones are
    tried again; killed in the middle, too."""
    (photos / "03.jpg").write_text("no")
    assert run()[0] == 0
    before = np.load("out/embeddings.npy")
    pictures.write(photos / "00 new.jpg", 99)  # all later images move to other rows
    pictures.write(photos / "03.jpg", 3, 20, 24)
    (photos / "04.jpg").unlink()
    (photos / "07.jpg").rename(photos / "99 renamed.jpg")
    (photos / "08.jpg").touch()
    pictures.write(photos / "98.jpg", 98)
    file, status = photos / "12.jpg", (photos / "12.jpg").stat()
    content = (photos / "13.jpg").read_bytes()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # only the change time tells
    monkeypatch.setattr(bulk_embedding, "ROWS", 2)
    stop_after(1, monkeypatch)
    assert run()[0] == 130
    names = read_images(monkeypatch)
    code, out, err = run()
    assert (code, err) == (0, "")
    continued, counts, written = out.splitlines()
    assert continued == f"continuing: {COUNT} of {COUNT + 1} images are embedded already"
    assert counts == "images: 4 new, 1 changed, 2 dropped, 16 kept"
    assert written == f"{COUNT + 1} embeddings with {DIM} dimensions: out"
    assert names == ["photos/98.jpg"]  # the others were embedded by the first try
    rows = np.load("out/embeddings.npy")
    np.testing.assert_array_equal(rows[[1, 2, 5, -1]], before[[0, 1, 4, 6]])
    np.testing.assert_array_equal(rows[11], rows[12])
    check_as_from_scratch(run)
    assert run()[1].startswith("all images have been embedded already")
    (photos / "98.jpg").unlink()
    (photos / "00 new.jpg").unlink()
    assert run()[1].splitlines()[1] == f"images: 2 dropped, {COUNT - 1} kept"
    np.testing.assert_array_equal(np.load("out/embeddings.npy")[-1], rows[-1])
    check_as_from_scratch(run)


def test_another_model_is_refused(run: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(1, monkeypatch)
    assert run()[0] == 130
    chunk = Path("out.chunks/000000").resolve()
    remedy = f"delete {chunk}, and its images are embedded again, or give another --output"
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny(seed=1))
    expected = f"error: {chunk}: was made by another model (other weights); {remedy}\n"
    assert run() == (2, "", expected)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    chunk.rename(chunk.with_name("notes"))
    problem = "is not a chunk of embeddings; give another directory"
    assert run()[2] == f"error: {chunk.with_name('notes')}: {problem}\n"


def test_unusable_images(run: Execute, photos: Path) -> None:
    """They are left out and named; with --strict the command fails in the end, and goes on from there without it."""
    for name in ("02.jpg", "17.jpg"):
        (photos / name).write_text("no")
    code, _, err = run("--strict")
    reasons = [f"photos/{i}.jpg: {NO_IMAGE}" for i in ("02", "17")]
    error = "2 of 20 images cannot be used (listed above); fix them, or leave --strict out"
    unusable = [f"unusable: {reason}" for reason in reasons]
    assert (code, err.splitlines(), Path("out").exists()) == (2, [*unusable, f"error: {error}"], False)
    listed = [f"left out: {reason}" for reason in reasons]
    code, out, err = run()
    found = [f"18 embeddings with {DIM} dimensions: out"]
    assert (code, out.splitlines(), err.splitlines()) == (
        0,
        ["continuing: 18 of 20 images are embedded already", *found],
        [*listed, "left out: 2 of 20 images"],
    )
    ids = json.loads(Path("out/ids.json").read_text())
    assert ids == [f"photos/{i:02d}.jpg" for i in range(COUNT) if i not in (2, 17)]
    expected = Tiny().expected([np.asarray(Image.open(name)) for name in ids])
    np.testing.assert_allclose(table.read(Path("out")).embeddings, expected, atol=1e-6)


def test_an_error_of_a_missing_package_is_not_final(
    run: Execute, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the package is installed, the same command embeds the image."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(Image.fromarray(pictures.pixels(1, 20, 24))).save(photos / "20.heic", quality=100)
    (photos / "no.png").write_text("no")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pillow_heif", None)
        for _ in range(2):
            code, out, err = run()
            assert (code, "photos/20.heic: is HEIC, which needs one more package" in err) == (0, True)
        assert out.startswith("continuing" if _ else f"{COUNT} embeddings")
        assert len(table.read(Path("out")).ids) == COUNT
    code, out, err = run()
    assert (code, err) == (0, f"left out: photos/no.png: {NO_IMAGE}\nleft out: 1 of 22 images\n")
    exported = table.read(Path("out"))
    assert (exported.ids[-1], len(exported.ids)) == ("photos/20.heic", COUNT + 1)
    assert "continuing: 21 of 22 images are embedded already" in run()[1]


def test_what_is_left_out_is_said(run: Execute, photos: Path) -> None:
    """Images whose names differ in the case of their suffix are both read; own output and other files are not."""
    pictures.write(photos / "00.JPG", 99)
    for name in ("a.cr2", "b.CR2", "c"):
        (photos / name).write_text("no")
    pictures.write(photos / "run" / "figures" / "1.png", 1)
    (photos / "run" / "config.json").write_text('{"config": {}, "data_hash": ""}')
    code, out, err = run()
    assert (code, out.splitlines()[-1]) == (0, f"{COUNT + 1} embeddings with {DIM} dimensions: out")
    assert err.splitlines() == [
        "photos: left out, because dml_jax has written them: run (a run)",
        "photos: skipped 3 files other than images (.cr2: 2, no suffix: 1)",
    ]
