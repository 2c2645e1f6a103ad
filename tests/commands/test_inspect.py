"""The page of `dml-jax inspect`, for folders and tables."""

from pathlib import Path

import pytest

import dml_jax
from dml_jax.commands import inspect, prepare
from tests.commands.conftest import Execute, Fails
from tests.data import layouts
from tests.tiny_model import Tiny


@pytest.fixture
def page(execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> list[str]:
        code, out, err = execute(inspect, *arguments)
        assert (code, err) == (0, "")
        return out.splitlines()

    return run


def test_a_folder_of_classes(page: Execute) -> None:
    layouts.photos(Path("photos"), ("elm", "Gray Oak", "gray_oak", "yew "))
    (Path("photos") / "elm" / "1.cr2").write_text("")
    assert page("photos") == [
        "read as: folder, your own data",
        "splits: none given, so 50 % of the classes are for test",
        "train: 6 images of 2 classes, 'elm' to 'yew'; 3 images each",
        "test: 6 images of 2 classes, 'Gray Oak' to 'gray_oak'; 3 images each",
        "in all: 12 images of 4 classes",
        "missing: 0 of 12 images",
        "near-equal names: 'Gray Oak', 'gray_oak'",
        "doubt: near-equal names of classes: 'Gray Oak' and 'gray_oak'; rename those that are the "
        "same",
        "doubt: skipped 1 file other than images (.cr2: 1)",
        "prepare it: dml-jax prepare --name=folder --source=photos --output=data/photos",
        "or use it in place: --config.data.name=folder --config.data.path=photos",
    ]


def test_a_prepared_data_set(page: Execute, execute: Execute) -> None:
    layouts.photos(Path("photos"), ("ash", "elm", "oak", "yew"))
    assert execute(prepare, "--name=folder", "--source=photos", "--output=data", "--quiet")[0] == 0
    assert page("data") == [
        "read as: folder, a prepared data set",
        "train: 6 images of 2 classes",
        "test: 6 images of 2 classes",
        "use it: --config.data.name=folder --config.data.path=data",
    ]


def test_splits_of_the_same_classes(page: Execute, execute: Execute) -> None:
    for split in ("Train", "valid", "test"):
        layouts.photos(Path("photos", "fruits", split), ("ash", "elm", "oak", "yew"))
    lines = page("photos")
    assert lines[1:6] == [
        "splits: given",
        *(
            f"{name}: 12 images of 4 classes, 'ash' to 'yew'; 3 images each"
            for name in ("train", "validation", "test")
        ),
        "in all: 36 images of 4 classes",
    ]
    problem = "error in training: 4 classes are in both training and test (ash, elm, oak, yew)"
    assert lines[-2].startswith(problem)
    _, _, command = lines[-1].partition("prepare it: dml-jax prepare ")
    assert execute(prepare, *command.split(), "--quiet")[0] == 0
    assert page("photos", "--splits=none")[2].startswith("train: 18 images of 6 classes")


def test_folders_that_can_be_read_in_several_ways(page: Execute, fails: Fails) -> None:
    for kind in ("shirt", "shoe"):
        layouts.photos(Path("photos", kind), ("blue", "green", "red", "white"))
    message = fails(inspect, "photos")
    for reading in ("leaf: 4 classes", "top: 2 classes", "path: 8 classes"):
        assert f"--classes={reading}, e.g. " in message
    lines = page("photos", "--classes=path")
    assert "in all: 24 images of 8 classes" in lines
    assert lines[-1].endswith("--source=photos --classes=path --output=data/photos")


def test_a_table(page: Execute) -> None:
    splits = {"elm": "train", "oak": "train", "ash": "test", "yew": "test"}
    layouts.photos(Path("x", "images"), tuple(splits))
    rows = [
        f"images/{name}/{i}.jpg,{name},{split}" for name, split in splits.items() for i in range(4)
    ]
    (Path("x") / "t.csv").write_text("path,label,split\n" + "\n".join(rows))
    lines = page("x")
    assert lines[:3] == [
        "read as: csv, your own data",
        "columns: 'path' gives the path, 'label' gives the class, 'split' gives the split",
        "splits: given",
    ]
    assert "missing: 4 of 16 images" in lines
    assert lines[-3:] == [
        "doubt: training and prepare leave out 4 of 16 images, the first is 'images/elm/3.jpg': "
        "missing",
        "prepare it: dml-jax prepare --name=csv --source=x --output=data/x",
        "or use it in place: --config.data.name=csv --config.data.path=x",
    ]
    assert "doubt: 25 % of the listed images (4) are missing, e.g. 'images/elm/3.jpg'" in lines
    assert page("x/t.csv")[:-1] == lines[:-2]


def test_a_table_that_is_not_read_is_named_first(page: Execute) -> None:
    layouts.photos(Path("x"), ("elm", "oak"))
    (Path("x") / "t.csv").write_text("path,label\nelm/0.jpg,elm\nelm/1.jpg\n")
    lines = page("x/t.csv")
    assert lines[0].startswith("not read as csv: t.csv, line 3: ")
    assert lines[1] == "read as: folder, your own data"


def test_a_catalogue_is_no_table(page: Execute) -> None:
    layouts.photos(Path("x"), ("elm", "oak"))
    (Path("x") / "catalogue.csv").write_text("image,cluster\nelm/0.jpg,1\n")
    assert page("x")[0].startswith("not read as csv: catalogue.csv: has the columns image, cluster")
    (Path("x") / "catalogue.html").write_text("")
    lines = page("x")
    assert lines[0] == "read as: folder, your own data"
    what = "doubt: left out, because dml_jax has written them: catalogue.csv (a catalogue)"
    assert what in lines


def test_images_that_are_left_out(page: Execute) -> None:
    """Links to nowhere, and images alone in their class, as `prepare` lists them."""
    layouts.photos(Path("x"), ("ash", "elm", "oak", "yew"))
    layouts.photos(Path("x"), ("alone",), each=1)
    Path("x", "elm", "9.jpg").symlink_to("nowhere.jpg")
    lines = page("x")
    assert "missing: 1 of 14 images" in lines
    first = "the first is 'alone/0.jpg': the only image of its class 'alone'"
    assert lines[-3] == f"doubt: training and prepare leave out 2 of 14 images, {first}"


def test_folders_of_file_systems_are_no_classes(page: Execute) -> None:
    layouts.photos(Path("x"), ("elm", "oak", "lost+found", "#recycle"))
    layouts.photos(Path("x", "elm"), ("@eaDir",))
    assert "in all: 6 images of 2 classes" in page("x")


def test_too_few_classes_to_train(page: Execute) -> None:
    lines = page(layouts.photos(Path("x"), ("elm", "oak")))
    assert lines[-1].startswith("error in training: 6 images of 2 classes ('elm', 'oak'): 1 train")


def test_sources_that_cannot_be_read(fails: Fails, tmp_path: Path) -> None:
    assert "SOURCE=nowhere: must be an existing folder" in fails(inspect, "nowhere")
    (tmp_path / "archives").mkdir()
    for name in ("a.zip", "b.zip"):
        (tmp_path / "archives" / name).write_bytes(b"")
    wanted = "archives: a.zip (and 1 more) is an archive; unpack it first: unzip a.zip"
    assert wanted in fails(inspect, "archives")
    (tmp_path / "empty").mkdir()
    assert "empty: no images: give a folder with one folder of images per class" in fails(
        inspect, "empty"
    )
    (tmp_path / "empty" / "t.csv").write_text("a,b\n1,2\n")
    assert "not read as csv: t.csv: has the columns a, b; must have path, label" in fails(
        inspect, "empty"
    )
    assert "--splits=x: must be auto, classes, none, or the names" in fails(
        inspect, "empty", "--splits=x"
    )


def test_a_look_at_the_pixels(
    execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of folders that can be read in several ways, before the error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.setattr("dml_jax.commands.jax_setup.enable_compilation_cache", lambda: None)
    for part in ("lernen", "pruefen"):
        layouts.photos(Path("photos", part), ("ash", "elm", "oak", "yew"))
    code, out, err = execute(inspect, "photos", "--look")
    assert (code, err.count("hold mostly the same names")) == (2, 1)
    assert out.splitlines()[:2] == [
        "embedding 24 images with lite0",
        "looked at 24 images of 8 folders",
    ]
    assert "--classes=leaf" in out
    code, out, err = execute(inspect, "photos", "--classes=leaf", "--look")
    assert (code, err) == (0, "")
    assert "read as: folder" in out
    assert "looked at 24 images of 8 folders" in out
