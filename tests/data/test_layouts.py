"""Layouts of folders and tables in circulation: the classes and splits that are understood, or an
error that shows the readings. Words stand in many languages, so structure has to decide."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dml_jax.class_names import likeness, near_equal, normalised
from dml_jax.data.files import File, Files
from dml_jax.data.formats import csv, folder
from dml_jax.data.sources import Options
from dml_jax.data.understand import Understood, understand
from dml_jax.errors import DataError

TREES = ("ash", "elm", "fir", "oak", "yew")
TRAIN, TEST, BOTH = {"train"}, {"test"}, {"train", "test"}


def images(*folders: str, each: int = 2) -> Files:
    names = [f"{path}/{i}.jpg" for path in folders for i in range(each)]
    return {name: File(Path(name)) for name in names}


def crossed(pattern: str, others: Sequence[str], classes: Sequence[str] = TREES) -> Files:
    return images(*(pattern.format(s=other, c=name) for other in others for name in classes))


def read(files: Files, **options: str) -> Understood:
    return understand(folder.RECIPE, files, Options(**options), "photos", labelled=True)  # type: ignore[arg-type]


def classes(page: Understood) -> set[str]:
    return {entry.class_name for entry in page.entries}


def given(page: Understood) -> set[str]:
    """The splits that the source states."""
    return set() if page.undecided else set(page.classes())


SPLITS: dict[str, tuple[str, Sequence[str], set[str]]] = {  # five classes in each; the splits
    "plain": ("{c}", ("",), set()),
    "one folder below": ("{c}/images", ("",), set()),
    "train and test": ("{s}/{c}", ("train", "test"), BOTH),
    "doubled": ("{s}/{s}/{c}", ("training_set", "test_set"), BOTH),
    "doubled with a prefix": ("{s}/{s}/{c}", ("seg_train", "seg_test"), BOTH),
    "doubled, in German": ("{s}/{s}/{c}", ("lernen", "pruefen"), set()),
    "trainval": ("{s}/{c}", ("trainval", "test"), BOTH),
    "train_val": ("{s}/{c}", ("train_val", "test"), BOTH),
    "folds": ("{s}/{c}", ("fold_1", "fold_2", "fold_3", "fold_4", "fold_5"), set()),
    "folds with spaces": ("{s}/{c}", ("Fold 1", "Fold 2", "Fold 3"), set()),
    "folds without a separator": ("{s}/{c}", ("fold0", "fold1"), set()),
    "numbered splits": ("{s}/{c}", ("split_1", "split_2", "split_3"), set()),
    "parts": ("{s}/{c}", ("part1", "part2"), set()),
    "batches": ("{s}/{c}", ("batch_1", "batch_2"), set()),
    "sets with letters": ("{s}/{c}", ("set_a", "set_b"), set()),
    "a common prefix": (
        "{s}/{c}",
        ("flowers_train", "flowers_val", "flowers_test"),
        {*BOTH, "validation"},
    ),
    "few shots": ("{s}/{c}", ("support", "query"), {"gallery", "test"}),
    "retrieval": ("{s}/{c}", ("index", "query"), {"gallery", "test"}),
    "retrieval, with training": ("{s}/{c}", ("train", "gallery", "query"), {*BOTH, "gallery"}),
    "a database": ("{s}/{c}", ("database", "queries"), {"gallery", "test"}),
    "below the class": ("{c}/{s}", ("train", "test"), BOTH),
    "around a folder of images": ("{s}/images/{c}", ("train", "test"), BOTH),
    "below others": ("a/b/{s}/{c}", ("Train", "Test"), BOTH),
    "with years": ("{s}/{c}", ("train2017", "test2017"), BOTH),
    "with shares": ("{s}/{c}", ("train_70", "test_30"), BOTH),
    "years": ("{s}/{c}", ("2019", "2020", "2021"), set()),
    "years below the class": ("{c}/{s}", ("2019", "2020"), set()),
    "days": ("{c}/{s}", ("day1", "day2"), set()),
    "weekdays": ("{c}/{s}", ("monday", "friday"), set()),
    "dates": ("{c}/{s}", ("2024-05-01", "2024-05-02"), set()),
    "sessions": ("{c}/{s}", ("session_1", "session_2"), set()),
    "splits of folds": (
        "{s}/{c}",
        ("fold1/train", "fold1/test", "fold2/train", "fold2/test"),
        BOTH,
    ),
    "folds of splits": ("{s}/{c}", ("train/fold1", "train/fold2", "test/fold1"), BOTH),
}


@pytest.mark.parametrize("case", SPLITS)
def test_five_classes(case: str) -> None:
    pattern, others, splits = SPLITS[case]
    page = read(crossed(pattern, others))
    assert (classes(page), given(page)) == (set(TREES), splits)


UNCLEAR: dict[str, tuple[str, Sequence[str], str]] = {  # and the part that is right
    "German": ("{s}/{c}", ("lernen", "pruefen"), "leaf"),
    "French": ("{s}/{c}", ("apprentissage", "test"), "leaf"),
    "Spanish": ("{s}/{c}", ("entrenamiento", "validacion", "prueba"), "leaf"),
    "Chinese": ("{s}/{c}", ("训练", "测试"), "leaf"),
    "Russian": ("{s}/{c}", ("обучение", "тест"), "leaf"),
    "below the class": ("{c}/{s}", ("lernen", "pruefen"), "top"),
    "domains": ("{s}/{c}", ("photo", "sketch", "art"), "leaf"),
    "domains around images": ("{s}/images/{c}", ("amazon", "dslr"), "leaf"),
    "sexes": ("{c}/{s}", ("male", "female"), "top"),
    "cameras": ("{s}/{c}", ("cam1", "cam2"), "leaf"),
    "numbers": ("{s}/{c}", ("1", "2", "3"), "leaf"),
    "numbers below": ("{c}/{s}", ("1", "2", "3"), "top"),
    "shares": ("{s}/{c}", ("80", "20"), "leaf"),
    "domains of splits": (
        "{s}/{c}",
        ("photo/train", "photo/test", "art/train", "art/test"),
        "leaf",
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_unclear_levels_are_shown_and_chosen(case: str) -> None:
    pattern, others, right = UNCLEAR[case]
    files = crossed(pattern, others)
    message = f"hold mostly the same names, which can be read as .*--classes={right}: 5 classes, "
    with pytest.raises(DataError, match=message):
        read(files)
    assert classes(read(files, classes=right)) == set(TREES)


def test_any_of_the_readings_may_be_right() -> None:
    files = images(
        *(f"{kind}/{colour}" for kind in ("shirt", "shoe") for colour in ("red", "blue"))
    )
    with pytest.raises(
        DataError, match=r"leaf: 2 classes, e\.g\. 'blue'; .*path: 4 classes"
    ) as caught:
        read(files)
    assert "--classes=top: 2 classes, e.g. 'shirt'" in str(caught.value)
    assert len(classes(read(files, classes="path"))) == 4
    assert classes(read(files, classes="top")) == {"shirt", "shoe"}


def test_named_splits_decide() -> None:
    files = crossed("{s}/{c}", ("lernen", "pruefen"))
    page = read(files, splits="lernen:pruefen")
    assert (classes(page), given(page)) == (set(TREES), BOTH)
    assert len(classes(read(files, splits="none"))) == 10


def test_most_names_suffice() -> None:
    """A class that a split lacks is no class in another folder."""
    files = crossed("lernen/{c}", ("",)) | crossed("pruefen/{c}", ("",), TREES[:3])
    with pytest.raises(DataError, match=r"leaf: 5 classes.*top: 2 classes.*path: 8 classes"):
        read(files)
    nested = images("bird/robin", "bird/wren", "fish/cod", "fish/tuna", "fish/robin")
    assert len(classes(read(nested))) == 5


def test_folders_without_classes_beside_splits() -> None:
    files = crossed("{s}/{s}/{c}", ("seg_train", "seg_test")) | images("seg_pred/seg_pred")
    page = read(files)
    assert (classes(page), given(page)) == (set(TREES), BOTH)
    left_out = "2 images, e.g. 'seg_pred/seg_pred/0.jpg', are in none of the folders of splits"
    assert page.doubts == [f"{left_out}, and left out"]


@pytest.mark.parametrize("place", ["", "photos/", "photos/train/"])
def test_one_loose_image_is_one_doubt(place: str) -> None:
    splits = ("photos/train", "photos/test") if place.endswith("train/") else ("photos",)
    page = read(crossed("{s}/{c}", splits) | {f"{place}x.jpg": File(Path("x.jpg"))})
    assert classes(page) == set(TREES)
    assert page.doubts == [f"1 image, e.g. '{place}x.jpg', is in no class folder, and left out"]


def test_one_class_with_folders_stays_one_class() -> None:
    page = read(images("oak", "oak/a", "oak/b", each=3) | {"oak/x.jpg": File(Path("x.jpg"))})
    assert classes(page) == {"oak"}


def test_a_copy_of_the_whole_inside() -> None:
    kinds = ("NORMAL", "PNEUMONIA")
    page = read(crossed("{s}/{c}", ("x/train", "x/test", "x/x/train", "x/x/test"), kinds))
    assert (classes(page), given(page)) == (set(kinds), BOTH)


def test_hidden_folders() -> None:
    """Names that go on with a digit are no hidden folders; images in others are counted."""
    page = read(
        images(".22 LR", ".38 Special", "9 mm", ".cache/thumbnails")
        | {"9 mm/.a.jpg": File(Path("a"))}
    )
    assert classes(page) == {".22 LR", ".38 Special", "9 mm"}
    assert page.doubts == ["left out 2 images in hidden folders, e.g. '.cache/thumbnails/0.jpg'"]


SAME = [
    "\u200boak",
    "oak\u00ad",
    "\u200foak\u200e",
    "oak\ufe0f",
    "oak\0",
    " oak\u00a0",
    "oak\u2060",
]
ALIKE = [
    ("o\u200bak", "oak"),
    ("oak", "Oak"),
    ("oak.", "oak"),
    ("Swainson's", "Swainson\u2019s"),
    ("A-1", "A\u20131"),
    ("A-1", "A\u22121"),
    ("1e5", "100000"),
    ("1.0", "01"),
    ("a\u00a0b", "a_b"),
    ("oak 01", "oak 1"),
    ("\uff41", "a"),
]
DIFFERENT = [
    ("A1", "A2"),
    ("1.05", "1.5"),
    ("-1", "1"),
    ("1 2", "12"),
    ("1.5", "15"),
    ("oak", "oaks"),
    ("inf", "nan"),
]


def test_names() -> None:
    assert {normalised(name) for name in SAME} == {"oak"}
    assert normalised("o\u200bak") != "oak"
    for first, second in ALIKE:
        assert near_equal([first, second]), (first, second)
        assert likeness(first) == likeness(second)
    for first, second in DIFFERENT:
        assert not near_equal([first, second]), (first, second)


@pytest.mark.parametrize("name", [name for name in SAME if "\0" not in name])
def test_invisible_differences_are_no_classes(name: str) -> None:
    page = read(images("train/oak", "train/elm", f"test/{name}", "test/elm"))
    assert classes(page) == {"oak", "elm"}
    written = " and ".join(map(ascii, sorted(["oak", name])))
    assert page.doubts == [f"1 class is written in several ways, e.g. {written}"]


def table(
    directory: Path, header: str, row: str, *, encoding: str = "utf-8", **options: str
) -> Understood:
    """A table with three images of each of six classes; rows are filled in by class and image."""
    names, lines, files = ("ash", "box", "elm", "fir", "oak", "yew"), [header], {}
    for number, name in enumerate(names):
        trained = number < 3
        for i in range(3):
            files[f"{name}{i}.jpg"] = File(Path(f"{name}{i}"))
            words = {
                "split": "train" if trained else "test",
                "val": "train" if trained else "validation",
                "trained": trained,
                "tested": not trained,
                "query": "" if trained else i == 0,
                "gallery": "" if trained else i > 0,
                "role": "" if trained else "query" if i == 0 else "gallery",
                "all": "train" if trained else "query" if i == 0 else "gallery",
                "i": i,
            }
            lines.append(row.format(p=f"{name}{i}.jpg", c=name, **words))
    (directory / "t.csv").write_text("\n".join(lines), encoding=encoding)
    files["t.csv"] = File(directory / "t.csv")
    return understand(csv.RECIPE, files, Options(**options), "photos")  # type: ignore[arg-type]


TABLES = {  # header and row -> the numbers of images by split
    ("path,label,Split", "{p},{c},{split}"): (9, 9, 0),
    ("Path,Label,subset,shop", "{p},{c},{split},{i}"): (9, 9, 0),
    ("file_name;class;phase", "{p};{c};{split}"): (9, 9, 0),
    ("filepath\tspecies\tpartition", "{p}\t{c}\t{split}"): (9, 9, 0),
    ("filepath,class_name,is_training_img", "{p},{c},{trained:d}"): (9, 9, 0),
    ("image,category,isTrain", "{p},{c},{trained}"): (9, 9, 0),
    ("image,category,is_test", "{p},{c},{tested}"): (9, 9, 0),
    ("path,label,split,is_query,is_gallery", "{p},{c},{val},{query},{gallery}"): (9, 3, 6),
    ("path,label,split,is_query,is_gallery", "{p},{c},{split},{tested},{tested}"): (9, 9, 0),
    ("path,label,is_query,is_gallery", "{p},{c},{query},{gallery}"): (9, 3, 6),
    ("path,label,split,role", "{p},{c},{split},{role}"): (9, 3, 6),
    ("path,label,split", "{p},{c},{all}"): (9, 3, 6),
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_columns(tmp_path: Path, case: tuple[str, str], encoding: str) -> None:
    page = table(tmp_path, *case, encoding=encoding)
    numbers = [
        sum(e.split == split for e in page.entries) for split in ("train", "test", "gallery")
    ]
    assert tuple(numbers) == TABLES[case]
    assert page.classes()["train"] == ["ash", "box", "elm"]
    assert page.doubts == []


def test_every_column_is_accounted_for(tmp_path: Path) -> None:
    page = table(tmp_path, "path,label,split,wofuer,shop", "{p},{c},{split},{split},{i}")
    assert page.doubts == ["the column 'wofuer' looks like splits, and is not"]
    assert page.columns == (
        "'path' gives the path, 'label' gives the class, 'split' gives the split, metadata: "
        "'wofuer', 'shop'"
    )
    assert json.dumps(dict(page.entries[0].metadata)) == '{"wofuer": "train", "shop": "0"}'
    page = table(tmp_path, "path,label,wofuer", "{p},{c},{split}")
    assert page.doubts == ["the column 'wofuer' looks like splits, and is used"]
    assert given(page) == BOTH
    assert table(tmp_path, "path,label,split", "{p},{c},{split}", splits="none").undecided == 18
