"""How sources are understood: splits, classes, paths in tables, own output, skipped files, and what
is said of them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from dml_jax.config import Data
from dml_jax.data import formats
from dml_jax.data.files import File, Files, walk
from dml_jax.data.formats import csv, folder
from dml_jax.data.sources import Options, Recipe
from dml_jax.data.understand import Understood, shown, understand
from dml_jax.data.understand import test_classes as chosen
from dml_jax.errors import ConfigError, DataError
from tests.data import layouts, pictures

TWO = {"train": ["elm", "oak"], "test": ["ash", "yew"]}


def at(*folders: str) -> Files:
    """Two images in each folder, which are not read."""
    return {
        name: File(Path(name)) for path in folders for name in (f"{path}/1.jpg", f"{path}/2.jpg")
    }


def read(
    files: Files, *, recipe: Recipe = folder.RECIPE, labelled: bool = False, **options: object
) -> Understood:
    return understand(recipe, files, Options(**options), "photos", labelled=labelled)  # type: ignore[arg-type]


def table(rows: Sequence[str], images: Sequence[str], directory: Path) -> Files:
    """A table with the columns path, label and others, and empty images."""
    (directory / "t.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {"t.csv": File(directory / "t.csv")} | {path: File(Path(path)) for path in images}


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "test"), ("Train", "Test"), ("TRAINING", "TESTING"), ("train_set", "test-set"), ("trainset", "testSet"),  # noqa: E501
     ("TrainSet", "Test Set"), ("training_images", "query"), ("01_train", "02_test"), ("x/train", "x/test"),  # noqa: E501
     ("x/y/Train", "x/y/holdout"), ("train (1)", "test (1)")],
)  # fmt: skip
def test_folders_that_are_splits(train: str, test: str) -> None:
    assert read(at(f"{train}/oak", f"{train}/elm", f"{test}/ash", f"{test}/yew")).classes() == TWO


@pytest.mark.parametrize("name", ["val", "valid", "Validation", "dev", "val_set", "devset"])
def test_folders_of_validation(name: str) -> None:
    page = read(at("train/oak", "train/elm", f"{name}/oak", "test/ash", "test/yew"))
    assert page.classes() == {**TWO, "validation": ["oak"]}


TREES = ("oak", "elm", "ash")
READ = {  # structure -> folders, and the splits that are read
    "names of splits among other words": (
        [f"{a}/{b}" for a in ("box_train", "box_test", "query") for b in TREES],
        {"train", "test"},
    ),
    "unlabelled images of a split": (
        [*(f"x/x/{a}/{b}" for a in ("train", "valid") for b in TREES), "test/test"],
        {"train", "validation"},
    ),
    "one folder in each class, and images of no class": (
        [*(f"train/{b}/images" for b in TREES), "val/images"],
        {"train"},
    ),
    "numbered parts": ([f"dataset_{a}/{b}" for a in "12" for b in TREES], {"train", "test"}),
    "queries and a gallery": (
        [f"{a}/{b}" for a in ("index", "support", "query") for b in TREES],
        {"test", "gallery"},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_structure(name: str) -> None:
    folders, splits = READ[name]
    page = read(at(*folders), labelled=True)
    assert {entry.class_name for entry in page.entries} == {*TREES}
    assert {*page.classes()} == splits


def test_a_gallery_has_the_classes_of_its_queries() -> None:
    """Words do not decide that folders or a column are roles."""
    folders = ["index/a", "index/b", "query/c", "query/d"]
    page = read(at(*folders), labelled=True)
    assert {entry.class_name for entry in page.entries} == {*folders}
    rest = [f"test/k{i}" for i in range(3)]
    with pytest.raises(DataError, match="--classes=leaf: 9 classes"):
        read(at(*(f"lernen/k{i}" for i in range(9)), *(f.replace("test", "x") for f in rest)))


@pytest.mark.parametrize(
    ("column", "values", "splits"),
    [("is_query", "0101", {"test", "gallery"}), ("is_gallery", "0101", {"test", "gallery"}),
     ("is_query", "0011", {"train", "test"}), ("reference", "0101", {"train", "test"}),
     ("support", "0011", {"train", "test"})],
)  # fmt: skip
def test_columns_of_one_role(tmp_path: Path, column: str, values: str, splits: set[str]) -> None:
    rows = [
        f"{i}.jpg,{label},{value}"
        for i, (label, value) in enumerate(zip("aabb", values, strict=True))
    ]
    files = table([f"path,label,{column}", *rows], [f"{i}.jpg" for i in range(4)], tmp_path)
    page = read(files, recipe=csv.RECIPE, labelled=True)
    assert {*page.classes()} == splits
    assert bool(page.undecided) == (column in ("reference", "support"))


def test_tables_of_splits_are_one(tmp_path: Path) -> None:
    for name, labels in (("train", "ab"), ("test", "cd")):
        rows = "".join(f"{i},{label}.jpg,{label}\n" for i, label in enumerate(labels))
        (tmp_path / f"{name}.csv").write_text(f",path,label\n{rows}")  # as pandas writes it
    images = {f"{label}.jpg": File(Path(f"{label}.jpg")) for label in "abcd"}
    images |= {f"{name}.csv": File(tmp_path / f"{name}.csv") for name in ("train", "test")}
    page = read(images, recipe=csv.RECIPE)
    assert page.classes() == {"train": ["a", "b"], "test": ["c", "d"]}
    assert page.columns == "'path' gives the path, 'label' gives the class"
    (tmp_path / "test.csv").write_text("path,label,x\na.jpg,a,1\n")
    with pytest.raises(DataError, match=r"train\.csv has other columns than test\.csv"):
        read(images, recipe=csv.RECIPE)


def test_folders_below_each_class_are_splits() -> None:
    page = read(at("oak/train", "oak/test", "elm/train", "elm/test"), labelled=True)
    assert page.classes() == {"train": ["elm", "oak"], "test": ["elm", "oak"]}


CLOSED = at(
    *(
        f"{split}/{name}"
        for split in ("train", "valid", "test")
        for name in ("ash", "elm", "oak", "yew")
    )
)


@pytest.mark.parametrize("top", ["", "fruits/"])
def test_the_same_classes_in_training_and_test(top: str) -> None:
    files = {f"{top}{path}": file for path, file in CLOSED.items()}
    with pytest.raises(
        DataError,
        match=r"^photos: 4 classes are in both training and test .*data\.splits=classes$",
    ):
        read(files)
    page = read(files, labelled=True)
    assert list(page.classes()) == ["train", "validation", "test"]
    assert all(names == ["ash", "elm", "oak", "yew"] for names in page.classes().values())
    divided = read(files, splits="classes").classes()
    assert sorted([*divided["train"], *divided["test"]]) == ["ash", "elm", "oak", "yew"]
    assert sum(len(names) for names in read(files, splits="none").classes().values()) == 12


def test_a_class_may_be_called_test() -> None:
    page = read(at("oak", "elm", "test", "train"))
    assert sorted(name for names in page.classes().values() for name in names) == [
        "elm",
        "oak",
        "test",
        "train",
    ]
    assert page.doubts == ["the folders 'test', 'train' count as classes, not as splits"]
    assert read(at("test"), labelled=True).entries[0].class_name == "test"
    with pytest.raises(
        DataError, match=r"in no class folder.* or give --splits=none if 'test' is a class"
    ):
        read(at("train", "test"))
    assert (
        sum(len(names) for names in read(at("train", "test"), splits="none").classes().values())
        == 2
    )


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (
            ("train/oak", "test/oak", "extra/oak"),
            "folders 'test' and 'train' look like splits, .*--splits=train:",
        ),
        (
            ("oak/train", "oak/test", "elm", "ash"),
            "folders 'test' and 'train' look like splits, .*--splits=none",
        ),
        (
            ("train/oak", "test/elm", "extra/ash"),
            "folders 'test' and 'train' look like splits.*--splits=train:valid:test",
        ),
        (
            [f"{s}/{c}" for s in ("train", "val", "extra") for c in ("oak", "elm")],
            "'extra', 'train', 'val' hold mostly the same",
        ),
    ],
)
def test_uncertain_splits_are_refused(folders: Sequence[str], message: str) -> None:
    for labelled in (False, True):
        with pytest.raises(DataError, match=message):
            read(at(*folders), labelled=labelled)
    assert read(at(*folders), splits="none").undecided


def test_named_splits() -> None:
    files = at("lernen/oak", "lernen/elm", "prüfen/ash", "prüfen/yew")
    assert read(files, splits="lernen:prüfen").classes() == TWO
    assert read(files | at("wählen/oak"), splits="lernen:wählen:prüfen").classes() == {
        **TWO,
        "validation": ["oak"],
    }
    page = read(files | at("wählen/oak"), splits="lernen:prüfen")
    assert page.classes() == TWO
    left_out = "2 images, e.g. 'wählen/oak/1.jpg', are in none of the folders of splits"
    assert page.doubts == [f"{left_out}, and left out"]
    with pytest.raises(DataError, match="there are no folders of these names"):
        read(files, splits="a:b")
    for wrong in ("x", "", "a:a", ":b", "a:", "a:b:c:d:e"):
        with pytest.raises(
            ConfigError,
            match=r"^--splits=.*: must be auto, classes, none, or the names of the folders",
        ):
            Options(splits=wrong).named()


def test_folders_inside_class_folders() -> None:
    """They belong to the class if it holds images of its own; otherwise they are classes, and this
    is said."""
    page = read(at("oak", "oak/2024/march", "elm", "yew/a", "yew/b"))
    assert {entry.class_name for entry in page.entries} == {"oak", "elm", "yew/a", "yew/b"}
    assert len([entry for entry in page.entries if entry.class_name == "oak"]) == 4
    assert page.doubts[0].startswith(
        "1 folder inside class folders, e.g. 'oak/2024/march', counts as part of that class"
    )
    assert page.doubts[1].startswith(
        "2 classes, e.g. 'yew/a', are folders in 1 folder; if such folders are parts"
    )
    by_day = read(
        at("oak/monday", "oak/friday", "elm/monday", "elm", "yew/friday"), session="folder"
    )
    assert {entry.class_name for entry in by_day.entries} == {"oak", "elm", "yew"}


def test_equal_and_near_equal_names() -> None:
    page = read(at("ash ", "ash", "gru\u0308n", "gr\u00fcn", "oak", "elm"))
    assert {entry.class_name for entry in page.entries} == {"ash", "gr\u00fcn", "oak", "elm"}
    assert page.doubts == ["2 classes are written in several ways, e.g. 'ash' and 'ash '"]
    split = at("train/Gray Catbird", "train/oak", "test/gray_catbird", "test/elm")
    message = (
        r"^photos: the classes 'Gray Catbird' in training and 'gray_catbird' in test look "
        r"like .*--splits=classes"
    )
    with pytest.raises(DataError, match=message):
        read(split)
    alike = (
        "near-equal names of classes: 'Gray Catbird' and 'gray_catbird'; rename those that are "
        "the same"
    )
    assert read(split, splits="train:test").doubts == [alike]
    divided = read(split, splits="classes")
    assert divided.doubts == [alike]
    assert len({entry.split for entry in divided.entries if "atbird" in entry.class_name}) == 1


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_near_equal_names_are_divided_together(share: float) -> None:
    names = {f"{i}{end}" for i in range(20) for end in ("", ".0")}
    tested = chosen(names, share)
    assert all((f"{i}" in tested) == (f"{i}.0" in tested) for i in range(20))
    assert abs(len(tested) - share * 40) <= 1


@pytest.mark.parametrize(
    "written",
    ["images/ö 1.jpg", "./images/ö 1.jpg", "images/../images//ö 1.jpg", "images\\ö 1.jpg", "images/o\u0308 "  # noqa: E501
                                                                                           "1.jpg",
     "/elsewhere/data/images/ö 1.jpg", "C:\\data\\images\\ö 1.jpg"],
)  # fmt: skip
def test_paths_in_tables(tmp_path: Path, written: str) -> None:
    others = [f"images/{i}.jpg" for i in range(3)]
    rows = ["path,label", f"{written},oak", *(f"{other},elm" for other in others)]
    files = table(rows, ["images/ö 1.jpg", *others], tmp_path)
    page = read(files, recipe=csv.RECIPE)
    assert (page.entries[0].id, page.missing()) == ("images/ö 1.jpg", [])
    assert page.entries[0].file.path == Path("images/ö 1.jpg")


def test_paths_relative_to_a_folder_of_the_table(tmp_path: Path) -> None:
    files = table(
        ["path,label", "../images/1.jpg,oak", "images/2.jpg,elm"],
        ["images/1.jpg", "images/2.jpg"],
        tmp_path,
    )
    files = {("labels/t.csv" if name == "t.csv" else name): file for name, file in files.items()}
    assert [entry.id for entry in read(files, recipe=csv.RECIPE).entries] == [
        "images/1.jpg",
        "images/2.jpg",
    ]


def test_absolute_paths_share_one_start(tmp_path: Path) -> None:
    """A path below another folder does not stand for a file of the same name."""
    rows = ["path,label", "/a/x/1.jpg,oak", "/a/x/2.jpg,oak", "/b/x/3.jpg,elm", "/a/x/4.jpg,elm"]
    page = read(table(rows, [f"x/{i}.jpg" for i in (1, 2, 3)], tmp_path), recipe=csv.RECIPE)
    assert [entry.id for entry in page.entries] == [
        "x/1.jpg",
        "x/2.jpg",
        "/b/x/3.jpg",
        "/a/x/4.jpg",
    ]
    assert page.missing() == ["/b/x/3.jpg", "/a/x/4.jpg"]
    assert "50 % of the listed images (2) are missing, e.g. '/b/x/3.jpg'" in page.doubts


def test_a_table_whose_images_are_elsewhere(tmp_path: Path) -> None:
    files = table(["path,label", "1.jpg,oak", "2.jpg,elm"], ["other/3.jpg"], tmp_path)
    with pytest.raises(
        DataError,
        match=r"all 2 listed images are missing, e\.g\. '1\.jpg'; the source holds 1 image, e\.g\. "
        r"other/3",
    ):
        read(files, recipe=csv.RECIPE)


def test_splits_of_tables(tmp_path: Path) -> None:
    names = ["oak", "elm", "ash", "yew"]
    images = [f"{name}{i}.jpg" for name in names for i in (1, 2)]

    def rows(*splits: str) -> Files:
        by_class = dict(zip(names, splits, strict=True))
        return table(
            ["path,label,split", *(f"{p},{p[:3]},{by_class[p[:3]]}" for p in images)],
            images,
            tmp_path,
        )

    for splits in (
        ("Training", "train", "TEST", "testing"),
        ("train_set", "train", "query", "query"),
    ):
        assert read(rows(*splits), recipe=csv.RECIPE).classes() == TWO
    with pytest.raises(
        DataError, match=r"the column 'split' holds 'a', which is no split; --splits=train:valid"
    ):
        read(rows("a", "a", "b", "b"), recipe=csv.RECIPE)
    assert read(rows("a", "a", "b", "b"), recipe=csv.RECIPE, splits="a:b").classes() == TWO
    for splits in ("none", "classes"):
        found = read(rows("train", "train", "test", "test"), recipe=csv.RECIPE, splits=splits)
        assert found.undecided == len(images)
    assert read(rows("train", "train", "", ""), recipe=csv.RECIPE).doubts == [
        "4 images of 8 have no split; 50 % of their classes are for test"
    ]


OUTPUTS = {
    "config.json": {"config": {}, "data_hash": "x"},
    "manifest.json": {"files": {}, "sha256": "x"},
    "study.json": {"study": "x", "title": "x"},
}


@pytest.mark.parametrize("marker", OUTPUTS)
def test_own_output_is_left_out(
    tmp_path: Path, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = layouts.photos(tmp_path / "photos")
    before = formats.load(Data(name="folder", path=str(photos)))
    pictures.write(photos / "runs" / "x" / "figures" / "1.png", 1)
    (photos / "runs" / "x" / marker).write_text(json.dumps(OUTPUTS[marker]))
    after = formats.load(Data(name="folder", path=str(photos)))
    assert {name: list(split.ids) for name, split in after.items()} == {
        n: list(s.ids) for n, s in before.items()
    }
    assert "left out, because dml_jax has written them: runs/x (" in after["test"].note
    assert set(formats.class_folders([str(photos)])) == {"elm", "oak", "yew", "Öl bäume"}
    (photos / "runs" / "x" / marker).write_text("[" * 5000)  # of another program
    assert "runs/x/figures" in {entry.class_name for entry in read(dict(walk(photos))).entries}


def test_a_run_in_the_folder_of_the_photographs_itself(tmp_path: Path) -> None:
    photos = layouts.photos(tmp_path / "photos")
    pictures.write(photos / "figures" / "1.png", 1)
    (photos / "config.json").write_text(json.dumps(OUTPUTS["config.json"]))
    page = read(dict(walk(photos)))
    assert {entry.class_name for entry in page.entries} == {"elm", "oak", "yew", "Öl bäume"}


def test_skipped_files_are_counted_by_suffix() -> None:
    files = at("oak", "elm") | {
        name: File(Path(name)) for name in ("oak/1.JPG", "oak/2.mpo", "elm/3.avif")
    }
    files |= {
        name: File(Path(name))
        for name in ("oak/a.cr2", "oak/b.CR2", "elm/x", "elm/y.svg", "elm/z.cr2")
    }
    page = read(files)
    assert len(page.entries) == 7
    assert page.doubts == ["skipped 5 files other than images (.cr2: 3, no suffix: 1, .svg: 1)"]


def test_images_that_a_table_does_not_list_are_counted(tmp_path: Path) -> None:
    files = table(
        ["path,label", "1.jpg,oak", "2.jpg,elm"], ["1.jpg", "2.jpg", "3.jpg", "4.jpg"], tmp_path
    )
    assert read(files, recipe=csv.RECIPE).doubts == [
        "2 images, e.g. '3.jpg', not listed and not used"
    ]


def test_at_most_ten_lines_are_printed() -> None:
    lines = [f"doubt {i}" for i in range(12)]
    assert shown(lines[:10], "x") == [f"x: {line}" for line in lines[:10]]
    assert shown(lines) == [*lines[:9], "3 further doubts: dml-jax inspect lists them"]


def test_a_table_is_read_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By training, and by commands that compare all images of a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = layouts.photos(tmp_path / "x" / "images", ("elm", "oak", "ash", "yew"))
    rows = [
        f"{photos / name / f'{i}.jpg'},{name}"
        for name in ("elm", "oak", "ash", "yew")
        for i in range(3)
    ]
    (tmp_path / "x" / "t.csv").write_text("path,label\n" + "\n".join(rows))
    splits = formats.load(Data(name="csv", path=str(tmp_path / "x")))
    assert {name: len(split.ids) for name, split in splits.items()} == {"train": 6, "test": 6}
    assert splits["test"].read(0, None).shape[2] == 3
    expected = {
        name: [photos / name / f"{i}.jpg" for i in range(3)]
        for name in ("elm", "oak", "ash", "yew")
    }
    for source in (tmp_path / "x", tmp_path / "x" / "t.csv"):
        assert formats.class_folders([str(source)]) == expected
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"x\.zip is an archive; unpack it first: unzip .*x\.zip$"):
        formats.class_folders([str(tmp_path / "x.zip")])


def test_a_table_that_lists_an_image_twice_is_not_compared(tmp_path: Path) -> None:
    """Each would find the other."""
    layouts.photos(tmp_path / "elm", ("x",))
    (tmp_path / "t.csv").write_text("path,label\nelm/x/0.jpg,a\nelm/x/1.jpg,b\nelm/x/0.jpg,a\n")
    with pytest.raises(DataError, match=r"t\.csv: elm/x/0\.jpg is listed 2 times; list it once"):
        formats.class_folders([str(tmp_path / "t.csv")])


def test_training_in_place_with_a_session_for_each_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders in a class folder are sessions of one class, in training as in other commands."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, name in enumerate(("ash", "elm", "oak", "yew")):
        layouts.photos(tmp_path / "photos" / name, ("friday", "monday"), seed=100 * number)
    splits = formats.load(Data(name="folder", path=str(tmp_path / "photos"), session="folder"))
    assert sorted([*splits["train"].classes, *splits["test"].classes]) == [
        "ash",
        "elm",
        "oak",
        "yew",
    ]
    assert set(splits["test"].metadata["session"]) == {"friday", "monday"}
    days = formats.load(Data(name="folder", path=str(tmp_path / "photos")))
    assert (len(days["train"].classes), len(days["test"].classes)) == (2, 2)
    assert "folders such as 'ash/friday' count as part of the class 'ash'" in days["test"].note
    for number, name in enumerate(("ash", "elm", "oak", "yew")):  # one day of each class
        layouts.photos(tmp_path / "short" / name, (f"day {number}",), seed=100 * number)
    with pytest.raises(DataError, match=r"session=folder: no test image has another of its class"):
        formats.load(Data(name="folder", path=str(tmp_path / "short"), session="folder"))


def test_links_and_twins_are_read(tmp_path: Path) -> None:
    photos = layouts.photos(tmp_path / "photos", ("oak", "elm"))
    pictures.write(photos / "oak" / "0.JPG", 5)
    os.symlink(photos / "oak" / "0.jpg", photos / "elm" / "linked.jpg")
    assert {"oak/0.jpg", "oak/0.JPG", "elm/linked.jpg"} <= {
        e.id for e in read(dict(walk(photos))).entries
    }


def test_a_published_data_set_that_cannot_be_read_is_no_folder_of_classes(tmp_path: Path) -> None:
    """Its folders would be two classes, "cars_train" and "cars_test"; --splits=none takes them for
    classes."""
    (directory,) = layouts.cars_kaggle(tmp_path)
    with pytest.raises(
        DataError, match=r"not read as cars: .*cars_annos\.mat: none of its 8 images.*--splits=none"
    ):
        formats.class_folders([str(directory)])
    assert len(formats.class_folders([str(directory)], Options(splits="none"))) == 2
