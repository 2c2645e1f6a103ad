"""The command `dml-jax prepare`: results, invalid input, unusable images and interruptions."""

import io
import json
import os
import re
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dml_jax
from dml_jax.commands import prepare
from dml_jax.config import Data
from dml_jax.data import decode, formats, read_ahead, store
from dml_jax.data.prepare import check, prepare_dataset
from dml_jax.data.prepare.sources import Entry, File
from tests.analysis.test_page import Page
from tests.commands.conftest import Execute, Fails
from tests.data import layouts, pictures
from tests.tiny_model import Tiny

ROOT = Path(__file__).parents[2]
NOT_UTF8 = b"caf\xe9"


def flags(name: str, source: Path, output: Path, *more: str) -> list[str]:
    return [f"--name={name}", f"--source={source}", f"--output={output}", *more]


@pytest.fixture
def run(execute: Execute) -> Execute:
    return partial(execute, prepare)


def test_a_finished_data_set_is_left_unchanged(tmp_path: Path, run: Execute) -> None:
    photos = layouts.photos(tmp_path / "photos")
    code, out, err = run(*flags("folder", photos, tmp_path / "out"))
    assert (code, err) == (0, "")
    assert "train: 6 images of 2 classes\ntest: 6 images of 2 classes\nsha256 " in out
    assert out.endswith(
        f"\nwritten: {tmp_path / 'out'}; use with --config.data.name=folder --config.data.path={tmp_path / 'out'}\n"
    )
    before = (tmp_path / "out" / store.MARKER).read_bytes()
    code, out, _ = run(*flags("folder", photos, tmp_path / "out"))
    assert code == 0
    assert "is already prepared" in out
    assert (tmp_path / "out" / store.MARKER).read_bytes() == before
    code, _, err = run(*flags("folder", photos, tmp_path / "out", "--short_side=16"))
    assert code == 2
    assert "was prepared with another short_side" in err
    assert run(f"--verify={tmp_path / 'out'}")[0] == 0


@pytest.mark.parametrize("options", [(), ("--short_side=16", "--pixels")])
def test_each_image_is_decoded_once_on_all_cores(
    tmp_path: Path, run: Execute, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    photos = layouts.photos(tmp_path / "photos")  # 12 images
    Image.fromarray(pictures.pixels(9)).convert("RGBA").save(photos / "oak" / "1.jpg", "PNG")  # is converted
    Image.fromarray(pictures.pixels(9, 8, 90)).save(photos / "oak" / "2.jpg", "BMP")  # is not resized
    given = [path.read_bytes() for path in photos.rglob("*.jpg")]
    decoded = []
    others = threading.Barrier(4)  # until as many threads as cores have arrived
    decode_image = decode.rgb

    def count(data: bytes, min_side: int = 0) -> np.ndarray:
        decoded.append(data)
        others.wait(60)
        return decode_image(data, min_side)

    monkeypatch.setattr(read_ahead, "usable_cores", lambda: 4)
    monkeypatch.setattr(decode, "rgb", count)
    arguments = ["--name=folder", f"--source={photos}", f"--output={tmp_path / 'out'}", *options]
    code, _, err = run(*arguments)
    assert (code, err) == (0, "")
    assert sorted(decoded) == sorted(given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--name: missing"),
        (["--name=folder", "--source=x"], "--output: missing"),
        (["--name=foldr", "--source=x", "--output=y"], "--name='foldr'.*folder"),
        (["--name=digits", "--source=x", "--output=y"], "--name=digits: needs no preparation"),
        (["--name=folder", "--source=nowhere", "--output=y"], "--source=nowhere: must be an existing folder"),
        (["--name=folder", "--source=x", "--output=y", "--splits=odd"], "--splits: invalid choice: 'odd'"),
        (["--name=folder", "--source=.", f"--output={300 * 'y'}"], "File name too long"),
        (
            ["--name=folder", "--source=.", f"--output={os.fsdecode(NOT_UTF8)}"],
            r"--output=caf\\udce9: cannot be used \('utf-8' codec",
        ),
        (["--name=folder", "--source=x", "--output=y", "--sourse=z"], "--sourse=z.*--source"),
        (["--verify=nowhere"], "nowhere"),
    ],
)
def test_errors_are_one_line(fails: Fails, arguments: list[str], message: str) -> None:
    assert re.search(message, fails(prepare, *arguments))


def test_an_output_directory_in_use_is_rejected(tmp_path: Path, run: Execute) -> None:
    photos = layouts.photos(tmp_path / "photos")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("my work")
    for output in (tmp_path / "mine", photos / "prepared"):
        code, _, err = run(*flags("folder", photos, output))
        assert code == 2
        assert "must be a new or empty directory outside of the sources" in err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "my work"
    assert not (photos / "prepared").exists()


def bad_photos(root: Path) -> dict[str, str]:
    """Creates a folder with unusable images; returns the reason expected for each."""
    layouts.photos(root, each=4)
    good = pictures.encoded(1)
    oak = root / "oak"
    wide = Image.new("L", (12_000, 9_000))
    bomb = io.BytesIO()
    wide.save(bomb, "PNG")
    files = {
        "empty.jpg": (b"", "not an image"),
        "cut.jpg": (good[: len(good) // 2], "damaged"),
        "text.jpg": (b"<html>not found</html>", "not an image"),
        "one.png": (pictures.encoded(2, 1, 1, "PNG"), "only 1x1 pixels"),
        "huge.png": (bomb.getvalue(), "more than 89478485 pixels"),
        "half.png": (pictures.encoded(3, kind="PNG")[:300], "damaged"),
    }
    expected = {}
    for name, (data, reason) in files.items():
        (oak / name).write_bytes(data)
        expected[f"oak/{name}"] = reason
    (oak / "link.jpg").symlink_to(root / "nowhere.jpg")
    expected["oak/link.jpg"] = "missing"
    pictures.write(root / "alone" / "1.jpg", 4)
    expected["alone/1.jpg"] = "the only image of its class 'alone'"
    (oak / "copied.jpg").write_bytes((root / "elm" / "1.jpg").read_bytes())
    for name in ("oak/copied.jpg", "elm/1.jpg"):
        expected[name] = "the same image is in the classes elm and oak"
    return expected


def test_all_unusable_images_are_listed(tmp_path: Path, run: Execute) -> None:
    expected = bad_photos(tmp_path / "photos")
    (tmp_path / "photos" / ".DS_Store").write_bytes(b"clutter")
    (tmp_path / "photos" / "oak" / "Thumbs.db").write_bytes(b"clutter")
    code, out, err = run(*flags("folder", tmp_path / "photos", tmp_path / "out"))
    assert code == 2
    assert err.startswith(f"error: {len(expected)} of 25 images cannot be used (all are listed above)")
    assert err.count("\n") == 1
    for name, reason in expected.items():
        assert any(line.startswith(f"{name}: {reason}") for line in out.splitlines()), (name, out)
    assert not (tmp_path / "out").exists()

    code, out, err = run(*flags("folder", tmp_path / "photos", tmp_path / "out", "--skip_bad"))
    assert (code, err) == (0, "")
    assert f"left out: {len(expected)} images" in out
    skipped = json.loads((tmp_path / "out" / store.MARKER).read_text())["skipped"]
    assert {name for name, _ in skipped} == set(expected)
    splits = formats.load(Data(name="folder", path=str(tmp_path / "out")))
    assert sum(len(split.labels) for split in splits.values()) == 15
    for split in splits.values():
        assert all(split.read(i, None).ndim == 3 for i in range(len(split.ids)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named_while_images_are_encoded(tmp_path: Path) -> None:
    entry = Entry("1.jpg", File(pictures.write(tmp_path / "1.jpg", 1)), "oak", "train")
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        prepare_dataset.check_images([entry], Path("/dev/full"), 0, True, lambda done: None)


@pytest.mark.parametrize("when", ["inspect_images", "write_records"])
def test_an_interrupted_preparation_leaves_nothing(
    tmp_path: Path, run: Execute, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """And starts again; Ctrl-C while images are checked or written."""
    archive, out = layouts.cub(tmp_path), tmp_path / "out"
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        module = check if when == "inspect_images" else prepare_dataset
        patch.setattr(module, when, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*flags("cub", archive, out, "--subset"))[0] == 130
    assert sorted(tmp_path.iterdir()) == before
    assert run(*flags("cub", archive, out, "--subset"))[0] == 0
    store.verify(out)


def copies(root: Path) -> None:
    """Two training and two test classes, with an exact copy, equal pixels and a resized copy in one of each."""
    layouts.photos(root / "train", ("a", "b"))
    layouts.photos(root / "test", ("c", "d"), seed=800)
    (root / "train" / "a" / "copy.jpg").write_bytes((root / "train" / "a" / "1.jpg").read_bytes())
    Image.open(root / "train" / "a" / "1.jpg").save(root / "train" / "a" / "same.png")
    for name, to in (("train/b/1.jpg", "test/c/again.jpg"), ("test/d/0.jpg", "test/d/large.jpg")):
        picture = Image.open(root / name)
        picture.resize((picture.width * 2, picture.height * 2)).save(root / to, quality=80)


def test_duplicates_are_reported(tmp_path: Path, run: Execute) -> None:
    copies(tmp_path / "p")
    code, out, _ = run(*flags("folder", tmp_path / "p", tmp_path / "out"))
    assert code == 0
    for line in (
        "duplicates within a class: 2",
        "near duplicates within a class: 1",
        "near duplicates across splits: 1",
    ):
        assert line in out.splitlines()
    table = (tmp_path / "out" / check.TABLE).read_text().splitlines()
    assert table == [
        "kind,where,first,second",
        "near duplicates,across splits,test/c/again.jpg,train/b/1.jpg",
        "duplicates,within a class,train/a/1.jpg,train/a/copy.jpg",
        "duplicates,within a class,train/a/1.jpg,train/a/same.png",
        "near duplicates,within a class,test/d/0.jpg,test/d/large.jpg",
    ]


def test_the_data_report(tmp_path: Path, run: Execute) -> None:
    """What the page shows; with a model, it is written again."""
    copies(tmp_path / "p")
    (tmp_path / "p" / "test" / "c" / "<b>.png").write_text("text")
    given = flags("folder", tmp_path / "p", tmp_path / "out", "--skip_bad")
    code, out, _ = run(*given)
    assert (code, f"report: {tmp_path / 'out' / 'report.html'}" in out) == (0, True)
    page = Page((tmp_path / "out" / "report.html").read_text())
    words = " ".join(page.texts)
    for expected in (
        "8 images of 2 classes", "JPEG", "PNG", "test/c/<b>.png", "not an image",
        "across splits, near duplicates: test/c/again.jpg and train/b/1.jpg",
        "give the same command once more with --model=lite0",
    ):  # fmt: skip
        assert expected in words, expected
    assert len([attrs for attrs in page.all("img") if "data:image/jpeg" in (attrs["src"] or "")]) == 8
    links = [attrs["href"] or "" for attrs in page.all("a")]
    assert all(link.startswith("#") or (tmp_path / "out" / link).is_file() for link in links)

    before = (tmp_path / "out" / store.MARKER).read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dml_jax, "load", lambda *_: Tiny())
        code, out, _ = run(*given, "--model=tiny")
    assert (code, "report: 1 doubtful label: " in out) == (0, True)
    page = Page((tmp_path / "out" / "report.html").read_text())
    rows = (tmp_path / "out" / "doubtful_labels.csv").read_text().splitlines()[1:]
    assert sum(attrs.get("class") == "tile query" for attrs in page.all("div")) == len(rows)
    assert (tmp_path / "out" / store.MARKER).read_bytes() == before


def test_duplicates_are_left_out(tmp_path: Path, run: Execute) -> None:
    copies(tmp_path / "p")
    (tmp_path / "p" / "train" / "b" / "also.jpg").write_bytes((tmp_path / "p" / "train" / "a" / "2.jpg").read_bytes())
    given = flags("folder", tmp_path / "p", tmp_path / "out")
    assert run(*given)[0] == 2
    code, out, _ = run(*given, "--drop=duplicates")
    assert (code, "left out: 5 images" in out) == (0, True)
    assert json.loads((tmp_path / "out" / store.MARKER).read_text())["skipped"] == [
        ["test/d/0.jpg", "a duplicate of test/d/large.jpg"],
        ["train/a/2.jpg", "the same image as train/b/also.jpg of another class"],
        ["train/a/copy.jpg", "a duplicate of train/a/1.jpg"],
        ["train/a/same.png", "a duplicate of train/a/1.jpg"],
        ["train/b/also.jpg", "the same image as train/a/2.jpg of another class"],
    ]
    assert "near duplicates across splits: 1" in out
    assert "duplicates within a class" not in out
    assert "was prepared with another drop" in run(*given)[2]


def test_the_largest_of_all_duplicates_in_a_class_is_kept() -> None:
    """Also where the first resembles only some of them, and none of them the largest."""
    entries: list[Any] = [SimpleNamespace(id=str(i), class_name="ab"[i == 5]) for i in range(6)]
    facts: Any = {i: SimpleNamespace(height=10, width=width) for i, width in enumerate((5, 8, 8, 9, 7, 6))}
    found = [check.Pair(i, j, 0, False) for i, j in ((0, 1), (2, 3), (1, 2), (4, 5))]
    assert check.to_drop(entries, facts, found) == dict.fromkeys((0, 1, 2), "a duplicate of 3")
    facts[3].width = 8
    assert check.to_drop(entries, facts, found) == dict.fromkeys((0, 2, 3), "a duplicate of 1")


def test_rotated_images_are_counted_and_read_either_way(tmp_path: Path, run: Execute) -> None:
    layouts.photos(tmp_path / "p", ("a", "b", "c", "d"))
    file = next((tmp_path / "p").rglob("*.jpg"))
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    Image.open(file).save(file, exif=exif)
    code, out, _ = run(*flags("folder", tmp_path / "p", tmp_path / "out"))
    assert code == 0
    assert "EXIF rotation: 1 image (data.exif_rotation)" in out
    name = str(file.relative_to(tmp_path / "p"))
    shapes = {}
    for rotation in (True, False):
        data = Data(name="folder", path=str(tmp_path / "out"), exif_rotation=rotation)
        (split,) = (split for split in formats.load(data).values() if name in split.ids)
        shapes[rotation] = split.read(list(split.ids).index(name), None).shape[:2]
    assert shapes[True] == shapes[False][::-1] != shapes[False]


@pytest.mark.parametrize("limit", [0, 5])
def test_duplicates_agree_with_brute_force(limit: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (400, 16), dtype=np.uint8)
    groups = np.stack([rng.integers(0, 2, 400), rng.integers(0, 4, 400)], axis=1)
    for i in range(250, 400):  # up to seven bits away from another one
        rows[i] = rows[rng.integers(250)]
        for bit in rng.choice(128, i % 8, replace=False):
            rows[i, bit // 8] ^= 1 << (bit % 8)
    bits = np.unpackbits(rows, axis=1).astype(int)
    near = (bits[:, None] != bits[None]).sum(2) <= limit
    np.fill_diagonal(near, False)
    expected: dict[tuple[int, int], int] = {}
    for i in range(400):
        firsts: dict[int, int] = {}
        for j in np.flatnonzero(near[i]).tolist():
            place = 2 if groups[i, 0] != groups[j, 0] else int(groups[i, 1] != groups[j, 1])
            firsts.setdefault(place, j)
        expected |= {(min(i, j), max(i, j)): place for place, j in firsts.items()}
    assert set(expected.values()) == {0, 1, 2}
    assert check.find_pairs(rows, groups, limit) == expected
    assert check.find_pairs(rows[:0], groups[:0], limit) == {}


def test_repeated_images_take_little_memory() -> None:
    """Of each of 20,000 equal images one pair, not 200 million."""
    equal = np.full((20_000, 16), 255, np.uint8)
    pairs = check.find_pairs(equal, np.zeros((20_000, 2), int), 5)
    assert pairs == {(0, i): 0 for i in range(1, 20_000)}
