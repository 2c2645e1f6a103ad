"""The command that embeds folders: what is written, continued, refused, divided and left out;
killed at any moment."""

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import dml_jax
from dml_jax import console, files
from dml_jax.commands import embed
from dml_jax.export import embedding_files
from dml_jax.inference import bulk_embedding, inputs
from tests.commands.conftest import Execute
from tests.data import pictures
from tests.test_main import command
from tests.tiny_model import DIM, Tiny

COUNT = 20  # images, in three files of at most 8 rows
# The last moment of `embed_killed_at`: before and after the plan, three files, the manifest of the
# arrays, and their directory.
LAST_MOMENT = 12
NO_IMAGE = "not an image (JPEG, PNG, GIF, BMP, TIFF, WEBP, AVIF, PPM)"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(COUNT):
        pictures.write(tmp_path / "photos" / f"{i:02d}.jpg", i, 20 + i % 3, 24)
    return tmp_path / "photos"


@pytest.fixture
def run(photos: Path, monkeypatch: pytest.MonkeyPatch, execute: Execute) -> Execute:
    monkeypatch.setattr(inputs, "ROWS", 8)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.setattr("dml_jax.commands.jax_setup.enable_compilation_cache", lambda: None)
    monkeypatch.chdir(photos.parent)
    return lambda *arguments: execute(
        embed, "--model=w", "--output=out", "--quiet", *arguments, "photos"
    )


def stop_after(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model fails after so many files of rows, until `monkeypatch` is undone."""

    class Failing(Tiny):
        def embed_each(self, *arguments: object) -> Iterator[np.ndarray]:
            for number, rows in enumerate(super().embed_each(*arguments)):
                if number == files:
                    raise KeyboardInterrupt
                yield rows

    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Failing())


def written(output: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in output.iterdir()}


def test_the_output_and_what_follows_it(run: Execute, photos: Path) -> None:
    """A finished output is kept as long as images and model are the same."""
    code, out, err = run()
    assert (code, out, err) == (0, f"{COUNT} embeddings with {DIM} dimensions: out\n", "")
    files = sorted(photos.iterdir())
    rows = np.load("out/embeddings.npy")
    pixels = [Tiny().read(file) for file in files]
    np.testing.assert_allclose(
        rows, Tiny().embed_pixels(np.stack(pixels)), atol=1e-6
    )  # one batch, another program
    assert json.loads(Path("out/ids.json").read_text()) == [f"photos/{file.name}" for file in files]
    assert sorted(entry.name for entry in Path().iterdir()) == ["out", "out.parquet", "photos"]

    times = {file: file.stat().st_mtime_ns for file in Path("out").iterdir()}
    assert run()[1].splitlines() == ["all images have been embedded already", out.strip()]
    assert times == {file: file.stat().st_mtime_ns for file in Path("out").iterdir()}
    code, out, err = run(f"--query={files[3]}")
    assert (code, err, out.splitlines()[2]) == (0, "", f"cosine 1.0000  photos/{files[3].name}")

    Path("out/embeddings.npy").write_bytes(b"damaged")
    assert run()[0] == 0
    np.testing.assert_array_equal(np.load("out/embeddings.npy"), rows)


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
    run("--skip_bad", "--output=new")
    assert Path("out/ids.json").read_text() == Path("new/ids.json").read_text()
    rows = [np.load(f"{name}/embeddings.npy") for name in ("out", "new")]
    np.testing.assert_allclose(*rows, atol=1e-6)  # batches of other sizes round differently
    columns = ["id", "error", "sha256", "stamp"]
    table, expected = (pq.read_table(f"{name}.parquet", columns=columns) for name in ("out", "new"))
    assert table == expected
    assert sorted(os.listdir("out.parquet")) == sorted(os.listdir("new.parquet"))
    for name in ("new", "new.parquet"):
        shutil.rmtree(name)


def test_changes_of_the_images(run: Execute, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only new and changed contents are embedded, deleted images are dropped, unusable ones are
    tried again; killed in the middle, too."""
    (photos / "03.jpg").write_text("no")
    assert run("--skip_bad")[0] == 0
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
    stop_after(1, monkeypatch)
    assert run("--skip_bad")[0] == 130
    names = read_images(monkeypatch)
    code, out, err = run("--skip_bad")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "the images have changed; embeddings of unchanged files are kept",
        "images: 3 new, 1 changed, 2 dropped, 1 tried again, 16 kept",
        f"{COUNT + 1} embeddings with {DIM} dimensions: out",
    ]
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


def test_the_progress_has_the_rates(run: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(
        console.Console, "update_progress", lambda _, done, text: texts.append(text)
    )
    assert run()[0] == 0
    assert len(texts) == 2
    assert all(re.fullmatch(r"\d+ images/s, a core decodes \d+", text) for text in texts)


def test_another_model_is_refused(run: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(1, monkeypatch)
    assert run()[0] == 130
    where = Path("out.parquet").resolve()
    remedy = f"delete {where} or give another --output\n"
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny(seed=1))
    expected = f"error: {where}: was made by another model (other weights); {remedy}"
    assert run() == (2, "", expected)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    Path("out.parquet/_plan.json").write_text("{")
    code, _, err = run()
    assert (code, "plan.json: is truncated or damaged" in err, err.endswith(remedy)) == (
        2,
        True,
        True,
    )
    Path("out.parquet/_plan.json").rename("out.parquet/notes")
    assert run()[2] == f"error: {where}: holds other files; give another directory\n"


def test_damaged_parts_are_named(run: Execute) -> None:
    run()
    file = Path("out.parquet/000001.parquet").resolve()
    content = file.read_bytes()
    position = content.index(np.load("out/embeddings.npy")[9].tobytes())
    flipped = content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
    shutil.rmtree("out")
    for wrong in (b"", content[:-4], flipped):
        file.write_bytes(wrong)
        code, _, err = run()
        assert err.startswith(f"error: {file}: is truncated or damaged"), err
        assert (code, "delete it" in err) == (2, True)
        assert not Path("out").exists()
    table = pq.read_table(io.BytesIO(content))
    for other in (
        table.drop_columns("error"),
        table.rename_columns(["id", "rows", "error", "sha256", "stamp"]),
    ):
        pq.write_table(other, file)
        code, _, err = run()
        assert (code, f"{file}: is truncated or damaged" in err) == (2, True), err
    file.unlink()
    assert run()[0] == 0
    assert file.read_bytes() == content


def test_two_commands_do_not_write_at_once(run: Execute) -> None:
    run()
    with files.locked(Path("out.parquet").resolve()):
        error = (
            f"error: {Path('out.parquet').resolve()}: another command is writing there; wait "
            "for its end\n"
        )
        assert run()[2] == error


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("x.zip", "x.zip is an archive; unpack it first: unzip x.zip"),
        ("x 1.tar.gz", "x 1.tar.gz is an archive; unpack it first: tar xf 'x 1.tar.gz'"),
        ("x.parquet", "x.parquet is a Parquet file; write its images to a folder first"),
    ],
)
def test_files_that_hold_images_are_to_be_unpacked(run: Execute, name: str, remedy: str) -> None:
    """Given by name, or in a folder without images."""
    Path("packed").mkdir()
    for file in (name, f"packed/{name}", f"packed/{name.replace('x', 'y')}"):
        Path(file).write_bytes(b"")
    assert f"error: {remedy}" in run(name)[2]
    assert f"error: packed: {remedy.replace(' is', ' (and 1 more) is', 1)}" in run("packed")[2]
    assert not Path("out.parquet").exists()


def test_embeddings_that_are_too_large_for_an_array(
    run: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_embedding, "ARRAY_BYTES", 4 * COUNT * DIM - 1)
    assert (
        run()[1] == f"{COUNT} embeddings with {DIM} dimensions: {Path('out.parquet').resolve()}\n"
    )
    assert not Path("out").exists()


def test_queries_that_are_no_images(run: Execute) -> None:
    """Are refused before anything is written."""
    Path("no.png").write_text("no")
    for query, message in (
        ("none.png", "there is no such file; give one image"),
        ("no.png", "no.png: not an image"),
    ):
        code, out, err = run(f"--query={query}")
        assert (code, out, message in err) == (2, "", True)
    assert not Path("out.parquet").exists()


def test_options_of_ray(run: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error: --engine: invalid choice: 'spark'" in run("--engine=spark")[2]
    assert run("--address=auto")[2] == "error: --address=auto: needs --engine=ray\n"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("--engine=ray")[2] == "error: --engine=ray: ray is not installed: pip install ray\n"


def test_unusable_images(run: Execute, photos: Path) -> None:
    """They are rows with an error; without --skip_bad the command fails in the end, and goes on
    from there with it."""
    for name in ("02.jpg", "17.jpg"):
        (photos / name).write_text("no")
    code, _, err = run()
    reasons = [f"photos/{i}.jpg: {NO_IMAGE}" for i in ("02", "17")]
    where = Path("out.parquet").resolve()
    error = (
        f"2 of 20 images cannot be used; all errors are in {where}; give --skip_bad to leave such "
        "images out of out"
    )
    unusable = [f"unusable: {reason}" for reason in reasons]
    assert (code, err.splitlines(), Path("out").exists()) == (
        2,
        [*unusable, f"error: {error}"],
        False,
    )
    listed = [f"left out: {reason}" for reason in reasons]
    code, out, err = run("--skip_bad")
    found = ["left out: 2 of 20 images", f"18 embeddings with {DIM} dimensions: out"]
    assert (code, out.splitlines(), err.splitlines()) == (
        0,
        ["trying 2 unusable images again", *found],
        listed,
    )
    ids = json.loads(Path("out/ids.json").read_text())
    assert ids == [f"photos/{i:02d}.jpg" for i in range(COUNT) if i not in (2, 17)]
    expected = Tiny().expected([np.asarray(Image.open(name)) for name in ids])
    np.testing.assert_allclose(embedding_files.read(Path("out")).embeddings, expected, atol=1e-6)


def test_an_error_of_a_missing_package_is_not_final(
    run: Execute, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the package is installed, the same command embeds the image."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(Image.fromarray(pictures.pixels(1, 20, 24))).save(
        photos / "20.heic", quality=100
    )
    (photos / "no.png").write_text("no")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pillow_heif", None)
        for _ in range(2):
            code, out, err = run("--skip_bad")
            assert (code, "photos/20.heic: is HEIC, which needs one more package" in err) == (
                0,
                True,
            )
        assert "trying 2 unusable images again" in out
        assert len(embedding_files.read(Path("out")).ids) == COUNT
    code, out, err = run("--skip_bad")
    assert (code, err) == (0, f"left out: photos/no.png: {NO_IMAGE}\n")
    exported = embedding_files.read(Path("out"))
    assert (exported.ids[-1], len(exported.ids)) == ("photos/20.heic", COUNT + 1)
    assert "trying 1 unusable image again" in run("--skip_bad")[1]


def test_what_is_left_out_is_said(run: Execute, photos: Path) -> None:
    """Images whose names differ in the case of their suffix are both read; own output and other
    files are not."""
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


def check_kills(photos: Path, folder: Path, moments: Sequence[int]) -> None:
    """Kills the command at each moment, each time in a new output; the same command then gives the
    same files."""
    done = command(*map(str, (photos, folder, *moments)), program=("-m", "tests.tiny_model"))
    assert json.loads(done.stdout.splitlines()[-1]) == {
        str(moment): [-9, 0] if 0 < moment <= LAST_MOMENT else [0] for moment in moments
    }
    outputs = [folder / f"killed at {moment}" for moment in moments]
    parts = [output.with_name(f"{output.name}.parquet") for output in outputs]
    # A killed command may leave its lock, which nobody holds.
    assert sorted(path for path in folder.iterdir() if path.suffix != ".lock") == sorted(
        outputs + parts
    )
    for output, part in zip(outputs, parts, strict=True):
        assert written(output) == written(outputs[0]), output
        assert written(part) == written(parts[0]), part


def test_a_killed_command_continues_bit_for_bit(photos: Path, tmp_path: Path) -> None:
    """Killed never, after the first file, while the output is written, and when it is complete."""
    check_kills(photos, tmp_path / "outputs", [0, 4, 10, LAST_MOMENT])


@pytest.mark.slow
def test_a_command_killed_at_any_moment(photos: Path, tmp_path: Path) -> None:
    """And once never, after its last moment, so that none is left out."""
    check_kills(photos, tmp_path / "outputs", range(LAST_MOMENT + 2))
