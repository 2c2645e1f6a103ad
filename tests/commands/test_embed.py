"""The command that embeds folders: what is written, continued, refused, divided and left out; killed at any moment."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dml_jax
from dml_jax.commands import cli, embed
from dml_jax.errors import DataError
from dml_jax.export import embedding_files, embedding_shards
from dml_jax.files import write_json
from tests.data import pictures
from tests.test_main import ROOT, environment
from tests.tiny_model import DIM, Tiny

COUNT = 20  # images, in three files of at most 8 rows
LAST_MOMENT = 18  # of `embed_killed_at`: nine changes, of which four are the plan and the three files

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(COUNT):
        pictures.write(tmp_path / "photos" / f"{i:02d}.jpg", i, 20 + i % 3, 24)
    return tmp_path / "photos"


@pytest.fixture
def run(photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(embedding_shards, "ROWS", 8)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.setattr("dml_jax.commands.runtime.enable_compilation_cache", lambda: None)
    monkeypatch.chdir(photos.parent)

    def execute(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["embed", "--model=w", "--output=out", "--quiet", *arguments, "photos"])
        code = cli.exit_code(lambda: embed.execute(sys.argv[1:]))
        return code, *capsys.readouterr()

    return execute


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


def test_the_output_and_what_follows_it(run: Run, photos: Path) -> None:
    """A finished output is kept as long as images and model are the same; otherwise it is replaced."""
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
    assert (code, err, out.splitlines()[2]) == (0, "", f"0.0000  photos/{files[3].name}")
    assert Path("out/neighbors.png").exists()

    Path("out/embeddings.npy").write_bytes(b"damaged")
    assert run()[0] == 0
    np.testing.assert_array_equal(np.load("out/embeddings.npy"), rows)
    pictures.write(files[5], 99)
    assert run()[0] == 0
    changed = (np.load("out/embeddings.npy") != rows).any(axis=1)
    assert changed.nonzero()[0].tolist() == [5]


def test_the_figure_is_no_image_to_embed(run: Run, photos: Path) -> None:
    """Also where the output is below the images; a photograph of the same name is one."""
    shutil.copy(photos / "00.jpg", photos / embed.FIGURE)
    arguments = ("--output=photos/out", "--query=photos/03.jpg")
    counted = f"{COUNT + 1} embeddings with {DIM} dimensions"
    code, out, _ = run(*arguments)
    assert (code, counted in out) == (0, True)
    code, out, _ = run(*arguments)
    assert (code, counted in out) == (0, True)
    assert out.startswith("all images have been embedded already\n")


def test_an_interrupted_command_continues(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    expected = written(Path("out"))
    shutil.rmtree("out")
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        assert run()[0] == 130
    assert sorted(file.name for file in Path("out.shards").glob("[!.]*")) == ["000000.npy", "000001.npy", "plan.json"]
    assert not Path("out").exists()
    code, out, _ = run()
    assert (code, out.splitlines()[0]) == (0, f"continuing: 2 of 3 files are in {Path('out.shards').resolve()}")
    assert written(Path("out")) == expected
    assert not Path("out.shards").exists()


def test_changes_between_two_tries_are_refused(run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(1, monkeypatch)
    assert run()[0] == 130
    where = Path("out.shards").resolve()
    remedy = f"delete {where} or give another --output\n"
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny(seed=1))
    expected = f"error: {where}: was begun with another model or version (model_sha256); {remedy}"
    assert run() == (2, "", expected)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    file = photos / "00.jpg"
    status, content = file.stat(), file.read_bytes()
    file.write_bytes(content[:-9] + bytes(9))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # only the change time tells
    expected = f"error: {where}: was begun with images that were different (images_sha256); {remedy}"
    assert run() == (2, "", expected)
    Path("out.shards/plan.json").write_text("{")
    code, _, err = run()
    assert (code, "plan.json: is truncated or damaged" in err, err.endswith(remedy)) == (2, True, True)
    Path("out.shards/plan.json").rename("out.shards/notes")
    assert run()[2] == f"error: {where}: holds other files than unfinished embeddings; give another --output\n"
    shutil.rmtree("out.shards")
    Path("out.shards").write_text("")
    assert run()[2].startswith(f"error: {where}: is a file")
    Path("out.shards").unlink()
    assert run()[0] == 0


def test_damaged_rows_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        run()
    file = Path("out.shards/000001.npy").resolve()
    for content in (b"", file.read_bytes()[:-4], Path("out.shards/000000.npy").read_bytes()[:128]):
        file.write_bytes(content)
        code, _, err = run()
        assert (code, f"error: {file}: " in err, "delete it" in err) == (2, True, True)
    file.unlink()
    assert run()[0] == 0


def test_processes_divide_the_images(run: Run) -> None:
    """In any order; the last one writes the output. One that comes later finds it."""
    run()
    expected = written(Path("out"))
    shutil.rmtree("out")
    code, out, err = run("--processes=2", "--process=1")
    assert (code, out, err) == (0, "the output will be written by the last process; files to come: 2\n", "")
    assert run("--processes=2", "--process=1")[1].splitlines()[-1] == out.strip()
    assert not Path("out").exists()
    assert run("--processes=2", "--process=0")[1] == f"{COUNT} embeddings with {DIM} dimensions: out\n"
    assert written(Path("out")) == expected
    assert run("--processes=2", "--process=1")[1].startswith("all images have been embedded already\n")
    for wrong, message in (
        ("--process=2", "--process=2: must be one of 0 to 1"),
        ("--process=-1", "--process=-1: must"),
    ):
        assert message in run("--processes=2", wrong)[2]
    assert run("--processes=0")[2] == "error: --processes=0: must be positive\n"


def test_another_process_merges(run: Run) -> None:
    run("--processes=2", "--process=1")
    with Path("out.shards/plan.json").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run("--processes=2", "--process=0") == (0, "another process is writing the output\n", "")
    assert run()[1].splitlines()[-1] == f"{COUNT} embeddings with {DIM} dimensions: out"


def test_two_processes_do_not_merge_at_once(run: Run, photos: Path) -> None:
    plan = embedding_shards.plan([str(file) for file in sorted(photos.iterdir())], {})
    one, other = embedding_shards.Shards(Path("out"), plan), embedding_shards.Shards(Path("out"), plan)
    for number in range(3):
        with one.merging() as whole:
            assert not whole
        one.write(number, np.ones((len(one.images(number)), DIM), np.float32))
    with one.merging() as first, other.merging() as second:
        assert (first, second) == (True, False)
    with other.merging() as whole:
        assert not whole
    assert not Path("out.shards").exists()


def test_processes_that_start_together_have_one_plan(run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to write decides; others of another plan write nothing and do not merge."""
    files = [str(file) for file in sorted(photos.iterdir())]
    plans = [embedding_shards.plan(files, {"model_sha256": name}) for name in "ab"]
    one, other = (embedding_shards.Shards(Path("out"), plan) for plan in plans)
    error = r"out\.shards: was begun with another model or version \(model_sha256\); delete "
    for number in range(3):
        one.write(number, np.ones((len(one.images(number)), DIM), np.float32))
        with pytest.raises(DataError, match=error):
            other.write(number, np.zeros((len(one.images(number)), DIM), np.float32))
    with pytest.raises(DataError, match=error), other.merging():
        pass
    np.testing.assert_array_equal(np.concatenate(list(one.usable_rows())), 1)
    with one.merging() as whole:
        assert whole

    def write_slowly(path: Path, value: object) -> None:
        time.sleep(0.2)
        write_json(path, value)

    def write(shards: embedding_shards.Shards) -> bool:
        try:
            shards.write(0, np.ones((8, DIM), np.float32))
        except DataError:
            return False
        return True

    monkeypatch.setattr(embedding_shards, "write_json", write_slowly)
    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(write, [one, other])) == [False, True]


def test_unusable_images(run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --skip_bad they stop the command, which keeps what it has; with it, it goes on and leaves them out."""
    for name in ("02.jpg", "17.jpg"):
        (photos / name).write_text("no")
    assert run()[2] == "error: photos/02.jpg: not an image (JPEG, PNG, GIF, BMP, TIFF, WEBP, PPM)\n"
    assert not Path("out.shards").exists()
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        assert "left out: photos/02.jpg: not an image" in run("--skip_bad")[2]
    assert run()[2].startswith("error: photos/17.jpg: not an image")
    code, out, err = run("--skip_bad")
    found = ["left out: 2 of 20 images", f"18 embeddings with {DIM} dimensions: out"]
    assert (code, out.splitlines()[-2:]) == (0, found)
    assert (err.count("\n"), err.startswith("left out: photos/17.jpg")) == (1, True)
    ids = json.loads(Path("out/ids.json").read_text())
    assert ids == [f"photos/{i:02d}.jpg" for i in range(COUNT) if i not in (2, 17)]
    expected = Tiny().expected([np.asarray(Image.open(name)) for name in ids])
    np.testing.assert_allclose(embedding_files.read(Path("out")).embeddings, expected, atol=1e-6)


def test_a_file_without_usable_images(run: Run, photos: Path) -> None:
    for i in range(8):
        (photos / f"{i:02d}.jpg").write_text("no")
    assert run("--skip_bad")[1].splitlines()[-1] == f"12 embeddings with {DIM} dimensions: out"
    exported = embedding_files.read(Path("out"))
    assert exported.ids == [f"photos/{i:02d}.jpg" for i in range(8, COUNT)]
    expected = Tiny().expected([np.asarray(Image.open(name)) for name in exported.ids])
    np.testing.assert_allclose(exported.embeddings, expected, atol=1e-6)
    assert Path("out/embeddings.npy").stat().st_size == 128 + 4 * 12 * DIM


@pytest.mark.parametrize("column", [0, 1])
def test_embeddings_that_are_not_finite(column: int, run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no reason to leave an image out, and do not pass for embeddings of good ones."""

    class Overflowing(Tiny):
        def _project(self, *arguments: Any) -> Any:
            return super()._project(*arguments).at[:, column].set(np.nan)

    (photos / "00.jpg").write_text("no")
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Overflowing())
    code, _, err = run("--skip_bad")
    assert (code, Path("out").exists(), Path("out.shards").exists()) == (2, False, False)
    assert err.splitlines()[1].startswith("error: photos/01.jpg: the model's embedding is not finite; use another ")


def test_rows_left_out_before_need_the_option_again(run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the command was interrupted or has finished, here or in another process."""
    (photos / "02.jpg").write_text("no")
    error = "error: photos/02.jpg: was left out with --skip_bad before; give --skip_bad again, or delete "
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        run("--skip_bad")
    assert run() == (
        2,
        f"continuing: 1 of 3 files are in {Path('out.shards').resolve()}\n",
        f"{error}{Path('out.shards').resolve()}\n",
    )
    found = ["left out: 1 of 20 images", f"19 embeddings with {DIM} dimensions: out"]
    assert run("--skip_bad")[1].splitlines()[-2:] == found
    assert run() == (2, "", f"{error}out\n")
    assert run("--skip_bad") == (0, "\n".join(["all images have been embedded already", *found, ""]), "")


def check_kills(photos: Path, folder: Path, moments: Sequence[int]) -> None:
    """Kills the command at each moment, each time in a new output; the same command then gives the same files."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tiny_model", photos, folder, *map(str, moments)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == {str(moment): [-9, 0] if moment else [0] for moment in moments}
    outputs = [folder / f"killed at {moment}" for moment in moments]
    assert sorted(folder.iterdir()) == sorted(outputs)
    for output in outputs:
        assert written(output) == written(outputs[0]), output


def test_a_killed_command_continues_bit_for_bit(photos: Path, tmp_path: Path) -> None:
    """Killed never, after the first file, while the output is written, and when it is complete."""
    check_kills(photos, tmp_path / "outputs", [0, 4, 12, 16])


@pytest.mark.slow
def test_a_command_killed_at_any_moment(photos: Path, tmp_path: Path) -> None:
    check_kills(photos, tmp_path / "outputs", range(LAST_MOMENT + 1))
