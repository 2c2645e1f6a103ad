"""How sources are understood, in training and in commands; see also `sources.txt`."""

import os
from pathlib import Path

import pytest

from dml_jax.config import Data
from dml_jax.data import formats, understand
from dml_jax.data.files import File, file_at, resolve_paths, walk
from dml_jax.data.formats import folder
from dml_jax.data.sources import Options, survey
from dml_jax.errors import DataError
from tests.data import layouts, pictures, trees

TREES = ("ash", "elm", "oak", "yew")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_choice_of_test_classes_is_stable() -> None:
    """It depends on the names alone, and adding a class moves few others."""
    names = {f"class {i}" for i in range(100)}
    tested = understand.choose_test_classes(names, 0.3)
    assert len(tested) == 30
    assert len(understand.choose_test_classes(names | {"new"}, 0.3) ^ tested) <= 2
    alike = {f"{i}{end}" for i in range(20) for end in ("", ".0")}  # stay together
    for share in (0.1, 0.3, 0.5, 0.9):
        tested = understand.choose_test_classes(alike, share)
        assert all((f"{i}" in tested) == (f"{i}.0" in tested) for i in range(20))
        assert abs(len(tested) - share * 40) <= 1


def test_at_most_ten_lines_are_printed() -> None:
    lines = [f"doubt {i}" for i in range(12)]
    assert understand.summarise_doubts(lines[:10], "x") == [f"x: {line}" for line in lines[:10]]
    assert understand.summarise_doubts(lines) == [*lines[:9], "3 further doubts: dml-jax inspect lists them"]


def test_a_table_is_read_in_place(tmp_path: Path) -> None:
    """By training, and by commands that compare all images of a folder."""
    photos = layouts.photos(tmp_path / "x" / "images", TREES)
    expected = {name: [photos / name / f"{i}.jpg" for i in range(3)] for name in TREES}
    rows = [f"{path},{name}" for name in TREES for path in expected[name]]
    (tmp_path / "x" / "t.csv").write_text("path,label\n" + "\n".join(rows), encoding="utf-16")
    splits = formats.load(Data(name="csv", path=str(tmp_path / "x")))
    assert {name: len(split.ids) for name, split in splits.items()} == {"train": 6, "test": 6}
    assert splits["test"].read(0, None).shape[2] == 3
    for source in (tmp_path / "x", tmp_path / "x" / "t.csv"):
        assert formats.class_folders([str(source)]) == expected


def test_an_image_that_is_listed_twice_would_find_itself(tmp_path: Path) -> None:
    for tree in ("a", r"x.csv:path,label\na/0.jpg,a\na/0.jpg,a\na/1.jpg,b"):
        trees.write(tmp_path, tree)
    with pytest.raises(DataError, match=r"x\.csv: a/0\.jpg is listed 2 times; list it once"):
        formats.class_folders([str(tmp_path / "x.csv")])


def test_a_published_data_set_that_cannot_be_read_is_no_folder_of_classes(tmp_path: Path) -> None:
    """Its folders would be two classes, "cars_train" and "cars_test"."""
    (directory,) = layouts.cars_kaggle(tmp_path)
    message = r"not read as cars: .*cars_annos\.mat: none of its 8 images.*--splits=none"
    with pytest.raises(DataError, match=message):
        formats.class_folders([str(directory)])
    assert len(formats.class_folders([str(directory)], Options(splits="none"))) == 2


def test_sessions_in_class_folders(tmp_path: Path) -> None:
    """The folders in a class folder are sessions of one class, in training as in other commands."""
    for number, name in enumerate(TREES):
        layouts.photos(tmp_path / "photos" / name, ("friday", "monday"), seed=100 * number)
        layouts.photos(tmp_path / "short" / name, (f"day {number}",), seed=100 * number)
    data = Data(name="folder", path=str(tmp_path / "photos"), session="folder")
    splits = formats.load(data)
    assert {*splits["train"].classes, *splits["test"].classes} == {*TREES}
    assert set(splits["test"].metadata["session"]) == {"friday", "monday"}
    assert [*formats.class_folders([data.path], Options(session="folder"))] == [*TREES]
    with pytest.raises(DataError, match=r"session=folder: no test image has another of its class"):
        formats.load(Data(name="folder", path=str(tmp_path / "short"), session="folder"))


def test_links_and_twins_are_read(tmp_path: Path) -> None:
    photos = layouts.photos(tmp_path / "photos", ("oak", "elm"))
    pictures.write(photos / "oak" / "0.JPG", 5)
    os.symlink(photos / "oak" / "0.jpg", photos / "elm" / "linked.jpg")
    os.symlink(photos, photos / "elm" / "around")
    entries = understand.understand(folder.RECIPE, survey(walk(photos)), Options(), "", labelled=True).rows
    assert len(entries) == 8
    assert {"oak/0.jpg", "oak/0.JPG", "elm/linked.jpg"} <= {entry.id for entry in entries}


def test_paths_of_tables_lead_to_their_files() -> None:
    """In the forms in which people write them."""
    names = ["images/ö 1.jpg", "images/2.jpg", "2.jpg"]
    files = {name: File(Path(name)) for name in names}
    for path in (
        "images/ö 1.jpg", "./images/ö 1.jpg", "images/../images//ö 1.jpg", "images\\ö 1.jpg",
        "images/o\u0308 1.jpg", "/elsewhere/data/images/ö 1.jpg", "C:\\data\\images\\ö 1.jpg",
    ):  # fmt: skip
        assert resolve_paths(files, "", [path, "2.jpg"]) == ["images/ö 1.jpg", "2.jpg"]
    assert resolve_paths(files, "images", ["2.jpg", "../2.jpg"]) == ["images/2.jpg", "2.jpg"]
    with pytest.raises(DataError, match=r"^missing$"):  # it is not in the source
        file_at({}, __file__).read()
