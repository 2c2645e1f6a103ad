"""Enrolled classes: the index, the command, and their error messages."""

import csv
import json
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import dml_jax
from dml_jax import seal, table
from dml_jax.commands import enroll, prepare
from dml_jax.data import sessions
from dml_jax.errors import DataError
from dml_jax.evaluation import open_set
from dml_jax.files import locked, write_json
from dml_jax.identity import Versions
from dml_jax.inference import enrollment
from dml_jax.inference.index import Index
from tests import colours, tiny_model
from tests.colours import Alone, Colours, picture
from tests.data import pictures
from tests.tiny_model import identity


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Three images per colour, in gallery/<colour>; the model of the command is `Colours`."""
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    return colours.pictures(tmp_path / "gallery")


@pytest.fixture
def index(photos) -> Index:
    found = Index(Colours())
    found.add({name: photos[name] for name in ("red", "green")})
    return found


def names(answers) -> list[str]:
    return [answer.name for answer in answers]


def test_answers_are_those_of_the_classifier(photos, index, tmp_path):
    """Probabilities, nearest images and limits, of files, arrays and stored indexes."""
    asked = [photos["green"][2], photos["red"][2], photos["blue"][0]]
    assert names(index.classify(asked, reject=0.1)) == ["green", "red", "unknown"]
    on_device = jax.device_put(Colours().embed(asked))
    assert names(index.classify(on_device, reject=0.1)) == ["green", "red", "unknown"]
    index.add({"blue": [np.asarray(Image.open(photos["blue"][1]))], "red": photos["grey"][:1]})
    assert index.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 0]
    others = Colours().unseen()
    rows = np.concatenate([index.embeddings, others.rows])
    classifier = open_set.fit(rows, np.concatenate([index.labels, 3 + np.arange(200) // 10]))
    scores = classifier.scores(Colours().embed(asked))[:, :3] / index.fitted[1].temperature
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for answer, row in zip(index.classify(asked, top=2), shares, strict=True):
        best = np.argsort(-row)[:2]
        assert [name for name, _ in answer.classes] == [index.classes[i] for i in best]
        np.testing.assert_allclose([p for _, p in answer.classes], row[best], rtol=1e-4)
        assert answer.probability == answer.classes[0][1]
    between = np.linspace(0, 1, 101)[:, None] * (rows[6] - rows[0]) + rows[0]
    between = (between / np.linalg.norm(between, axis=1, keepdims=True)).astype(np.float32)
    answers = index.classify(between)
    for answer, query in zip(answers, between, strict=True):
        own = np.flatnonzero(index.labels == index.classes.index(answer.name))
        assert answer.nearest == own[np.argmax(index.embeddings[own] @ query)]
    named = names(index.classify(between, min_probability=0.9))
    assert [name == "unknown" for name in named] == [a.probability < 0.9 for a in answers]
    assert 0 < named.count("unknown") < 101
    index.save(tmp_path / "i")
    again = Index.load(Colours(), tmp_path / "i")
    assert (again.classes, again.images) == (index.classes, index.images)
    assert again.classify(asked, reject=0.1) == index.classify(asked, reject=0.1)
    again.remove("blue")
    assert again.expect(reject=0.1).limit != index.expect(reject=0.1).limit
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_each_enrolled_class_plays_the_stranger_if_there_is_no_other(tmp_path):
    """Not those that the run was trained on, unless there are too few; the report says so."""
    images = {
        f"c{i}": [np.full((4, 4, 3), (40 * i, 255 - 40 * i, 99 + 20 * j), np.uint8) for j in (0, 1, 2)]
        for i in range(7)
    }
    assumed = "of them enrolled ones that are left out in turn"
    for trained, playing in (((), 7), (("c0", "c6"), 5), (("c0", "c1", "c2"), 7)):
        model = Alone()
        model.trained = trained
        index = Index(model)
        index.add(images, {name: list("abc") for name in images})
        strangers = index.fitted[1].strangers
        assert len(np.unique(strangers["label"])) == playing
        kept = index.labels != 4
        classifier = open_set.fit(index.embeddings[kept], index.labels[kept])
        margins = open_set.margins(classifier.scores(index.embeddings[~kept]), np.ones(6, bool))[1]
        np.testing.assert_allclose(strangers["margin"][strangers["label"] == 4], margins, atol=1e-5)
        text = "\n".join(enrollment.report(index, {}))
        assert f"{playing} {assumed}" in text
        assert ("though the run was trained on some" in text) == (len(trained) == 3)
    one = Index(Alone())
    one.add({"c0": images["c0"]})
    (answer,) = one.classify(images["c5"][:1])
    assert (answer.name, answer.probability) == ("c0", 1)
    one.save(tmp_path / "one")
    assert Index.load(Alone(), tmp_path / "one").classify(images["c5"][:1]) == [answer]
    assert "too few strangers" in enrollment.report(one, {"reject": 0.1})[1]


def test_classes_are_removed_renamed_and_merged(photos, index):
    index.add({"blue": photos["blue"]})
    before = index.embeddings.copy()
    index.merge("red", "blue")
    assert (index.classes, index.labels.tolist()) == (["blue", "green"], [0] * 3 + [1] * 3 + [0] * 3)
    np.testing.assert_array_equal(index.embeddings, before)
    assert names(index.classify(photos["red"])) == ["blue"] * 3
    assert index.remove("green") == 3
    assert (index.images, index.labels.tolist()) == (photos["red"] + photos["blue"], [0] * 6)
    index.rename("blue", "green")
    index.add({"green": photos["green"][:1], "blue": photos["blue"]})
    assert (index.classes, index.labels.tolist()) == (["green", "blue"], [0] * 4 + [1] * 3)


def test_failed_enrolment_changes_nothing(photos, index, tmp_path):
    """An index that was added to step by step stays as it was."""
    (tmp_path / "no.png").write_text("no")
    before = index.items.copy()
    for name in ("green", "blue"):
        with pytest.raises(DataError, match=r"no\.png: not an image"):
            index.add({"grey": photos["grey"], name: [*photos[name], tmp_path / "no.png"]})
    assert index.items == before


@pytest.fixture
def stored(photos, index, tmp_path) -> Path:
    """An index with calibration, in a directory."""
    index.calibrate({"blue": photos["blue"]})
    index.save(tmp_path / "i")
    return tmp_path / "i"


def test_damaged_indexes(stored, fails):
    """Any file flipped, cut, lost or of another index is named, whatever is to be done with it."""
    whole, other = stored.with_name("whole"), stored.with_name("other")
    shutil.copytree(stored, whole)
    index = Index.load(Colours(), stored)
    index.rename("red", "plum")
    index.save(other)
    files = [path.relative_to(stored) for path in stored.rglob("*") if path.is_file()]
    assert len(files) == 10
    for name in files:
        content = (stored / name).read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
        for changed in (flipped, content[:-2], b"", (other / name).read_bytes()):
            (stored / name).write_bytes(changed)
            if changed != content and (name != Path(seal.MANIFEST) or changed is flipped):
                with pytest.raises(DataError, match=rf"{name}: .*; enroll again$"):
                    Index.load(Colours(), stored)
        (stored / name).unlink()
        with pytest.raises(DataError, match=r"enroll again$"):
            Index.load(Colours(), stored)
        (stored / name).write_bytes(content)
    model = Colours()
    model.identity = identity(1)
    with pytest.raises(DataError, match=r"was made by another model \(step is 0, not 1\); give "):
        Index.load(model, stored)
    (stored / "classifier.npz").write_bytes(b"")
    (stored.parent / "x.png").touch()
    for arguments in (["--list"], ["--classify", stored.parent / "x.png"], ["--remove=red"]):
        assert "has changed since it was written; enroll again" in fails(
            enroll, "--model=w", f"--index={stored}", *map(str, arguments)
        )


def test_images_are_known_by_content(photos, tmp_path, execute):
    """A moved folder, a replaced file, other sessions: what is embedded, and the line that says
    so."""

    def run(*arguments: Any) -> tuple[str, int]:
        Colours.embedded = 0
        code, out, err = execute(enroll, "--model=w", f"--index={tmp_path / 'i'}", *arguments)
        assert (code, err, out.count("\n") <= 5) == (0, "", True), out + err
        return out.splitlines()[0].partition(": ")[2], Colours.embedded

    def held() -> Index:
        return Index.load(Colours(), tmp_path / "i")

    text = "12 images enrolled; sessions: each image by itself"
    assert run(tmp_path / "gallery") == (f"{text}; now 12 images of 4 classes", 12)
    before, moved = held(), tmp_path / "moved"
    (tmp_path / "gallery").rename(moved)
    now = "12 images enrolled already; now 12 images of 4 classes"
    assert run(moved) == (f"12 images found at another path; {now}", 0)
    np.testing.assert_array_equal(held().embeddings, before.embeddings)
    assert {Path(name).parts[-3] for name in held().images} == {"moved"}
    picture(moved / "red" / "1.png", "red", 5)
    text, count = run(moved)
    assert text.startswith("1 image replaced, as the file has changed; 1 image enrolled; sessions: each ")
    assert count == 1
    np.testing.assert_array_equal(held().embeddings, Colours().embed(held().images))
    text = f"12 images with another session than before; {now}"
    assert run(moved, r"--session=(\d)") == (text, 0)
    assert sorted(held().photographs.sessions) == sorted("012" * 4)
    assert run(moved, r"--session=(\d)") == run(moved) == (f"nothing new; {now}", 0)  # they are not forgotten
    (moved / "red" / "0.png").rename(moved / "red" / "x.png")
    (moved / "red" / "2.png").rename(moved / "red" / "0.png")
    assert run(moved) == (f"2 images found at another path; {now}", 0)
    shutil.copy(moved / "red" / "0.png", moved / "red" / "copy.png")
    assert run(moved)[0].startswith("nothing new; 12 images enrolled already; now 12")


def test_an_image_has_the_class_in_which_its_file_is_now(photos, tmp_path, execute):
    """Moved files and folders, and another label in a table; a copy whose other file exists has
    both classes, which is a doubt until one of them is deleted."""

    def run(source: Path | str) -> tuple[list[str], dict[str, int], int]:
        Colours.embedded = 0
        code, out, err = execute(enroll, "--model=w", f"--index={tmp_path / 'i'}", source)
        assert (code, err) == (0, "")
        names = [item.name for item in Index.load(Colours(), tmp_path / "i").items.values()]
        return out.splitlines(), {name: names.count(name) for name in names}, Colours.embedded

    gallery, path = tmp_path / "gallery", "images moved from"
    (tmp_path / "manifest.json").write_text("{}")  # not of a data set
    run(gallery)
    (gallery / "red" / "1.png").rename(gallery / "green" / "r.png")
    (gallery / "grey").rename(gallery / "gray")
    lines, counts, embedded = run(gallery)
    assert f"3 {path} grey to gray" in lines[0]
    assert "1 image moved from red to green" in lines[0]
    assert (counts, embedded) == ({"blue": 3, "green": 4, "gray": 3, "red": 2}, 0)
    assert not lines[1].startswith("doubt")
    again = Index(Colours())
    again.add({c: sorted((gallery / c).iterdir()) for c in ("blue", "green", "gray", "red")}, None)
    rows = {item.file: item.row for item in Index.load(Colours(), tmp_path / "i").items.values()}
    np.testing.assert_array_equal([rows[file] for file in again.images], again.embeddings)
    shutil.copy(gallery / "red" / "0.png", gallery / "blue" / "copy.png")
    lines, counts, embedded = run(gallery)
    assert "1 image enrolled" in lines[0]
    files = {name: gallery / name / file for name, file in (("blue", "copy.png"), ("red", "0.png"))}
    assert set(re.findall(r"[^ ;]+\.png", lines[1])) == {str(file) for file in files.values()}
    assert (counts["blue"], counts["red"], embedded) == (4, 2, 0)
    files["red"].unlink()
    lines, counts, _ = run(gallery)
    assert "1 image moved from red to blue" in lines[0]
    assert (counts["blue"], counts["red"]) == (4, 1)
    names = [f"{file},{name}" for name in ("red", "green", "gray", "blue") for file in (gallery / name).iterdir()]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path,label", *names]).replace("copy.png,blue", "copy.png,red"))
    lines, counts, _ = run(table)
    assert "1 image moved from blue to red" in "\n".join(lines)
    assert (counts["blue"], counts["red"]) == (3, 2)


@pytest.mark.parametrize(
    ("files", "option", "how", "found"),
    [
        (["monday_1", "monday_2", "friday_1", "friday_2"], "", "2 starts of", ["monday", "friday"]),
        (["IMG_20240512_1", "IMG-2024-05-13"], "", "2 days in file", ["20240512", "2024-05-13"]),
        (["IMG_1", "IMG_2"], "", "each image by itself", [""]),
        (["a1_1", "b2_1", "c3_1"], "folder", "each image by itself", [""]),
        (["a1_1", "b2_1"], r"^\w", "", ["a", "b"]),
    ],
)
def test_default_sessions_of_flat_folders(files, option, how, found, tmp_path):
    """Days in EXIF, else what repeats in names; which is said. Only folders that exist count."""
    said = list[str]()
    classes = {
        name: [Path(picture(tmp_path / name / f"{file}.jpg", name)) for file in files] for name in ("red", "green")
    }
    taken, guessed = sessions.sessions_by_file([classes], option, said.append)
    assert (how in guessed, set(taken.values()), len(said)) == (True, set(found), option == "folder")
    if how:
        exif = Image.Exif()
        for i, file in enumerate(taken):
            exif[306] = f"2024:05:1{i % 2} 10:00:00"
            Image.new("RGB", (8, 8)).save(file, exif=exif)
        taken, guessed = sessions.sessions_by_file([classes], option, said.append)
        assert (guessed, len(set(taken.values()))) == ("sessions: 2 days in EXIF", 2)


def test_the_command(photos, tmp_path, monkeypatch, execute):
    def run(*arguments: Any) -> tuple[int, str]:
        code, out, err = execute(enroll, "--model=w", f"--index={file}", *arguments)
        stated = any("reject" in str(argument) for argument in arguments)
        assert err.count("\n") == (code == 2 or stated)
        assert err.startswith("expected, in % with 95 % intervals, --reject=0.") == stated
        return code, out + err * (code == 2)

    file, new = tmp_path / "i", picture(tmp_path / "new" / "x.png", "blue", 4)
    gallery, later = tmp_path / "gallery", tmp_path / "later"
    later.mkdir()
    (gallery / "blue").rename(later / "blue")
    picture(gallery / "red" / "9.png", "red", 5)
    for arguments, said in (
        ([gallery], "10 images enrolled; sessions: each image by itself; now 10"),
        ([later], "3 images enrolled; sessions: each image by itself; now 13 images"),
        ([gallery, later], "i: nothing new; 13 images enrolled already; now 13 images of 4"),
        (["--remove=blue", "--remove=red"], "removed blue, 3 images; removed red, 4"),
        (["--remove=grey", later], "removed grey, 3 images; 3 images enrolled; "),
        (["--rename=green:lime"], "renamed green:lime; now 6 images of 2 classes"),
    ):
        before = seal.read_manifest(file).sha256 if file.exists() else ""
        code, text = run(*arguments)
        assert (code, said in text, "strangers accepted" in text) == (0, True, True), text
        assert text.count("\n") <= 5
        assert (seal.read_manifest(file).sha256 == before) == said.startswith("i: ")
    assert run("--list") == (0, "3\tlime\n3\tblue\n")
    assert not [path for path in file.rglob("*.json") if "grey" in path.read_text()]
    code, text = run("--classify", "--reject=0.3", new)
    header, row = csv.reader(text.splitlines())
    columns = "image answer class_1 probability_1 class_2 probability_2 margin nearest"
    found = dict(zip(columns.split(), row, strict=True))
    assert (code, header, found["image"], found["answer"]) == (0, columns.split(), new, "blue")
    assert (found["class_1"], found["class_2"]) == ("blue", "lime")
    assert float(found["probability_1"]) + float(found["probability_2"]) == pytest.approx(1)
    assert Path(found["nearest"]).parent.name == "blue"
    other = picture(tmp_path / "other.png", "red")
    code, text = run("--classify", "--reject=0.05", "--top=1", "--format=json", other, new)
    unknown, image = json.loads(text)["images"]
    assert (unknown["image"], unknown["class"]) == (other, "unknown")
    assert (image["nearest"], len(image["classes"])) == (found["nearest"], 1)
    assert image["classes"][0]["class"] == "blue"
    assert run("--merge=blue:lime")[1].splitlines()[0].endswith("now 6 images of 1 class")
    code, text = run("--remove=lime")
    assert (code, "the index is empty" in text) == (0, True)


def test_checks_count_enrolled_classes_and_strangers(photos, index, tmp_path, execute):
    """By hand: the answers to images that the index does not hold; six strangers set a limit."""
    index.save(tmp_path / "i")
    asked = {"red": [("red", 3), ("red", 30), ("green", 3)], "green": [("green", 2)]}
    asked |= {f"s{i}": [("blue", 8 * i), ("grey", 8 * i)] for i in range(6)}
    for name, images in asked.items():
        for i, image in enumerate(images):
            picture(tmp_path / "asked" / name / f"n{i}.png", *image)
    files = {name: sorted((tmp_path / "asked" / name).iterdir()) for name in asked}
    shutil.copy(photos["red"][0], tmp_path / "asked" / "red" / "copy.png")
    command = enroll, "--model=w", f"--index={tmp_path / 'i'}", f"--check={tmp_path / 'asked'}"
    before = seal.read_manifest(tmp_path / "i")
    with locked(tmp_path / "i.update"):  # does not wait, as it changes nothing
        code, text, _ = execute(*command, "--reject=0.2")
    assert (code, seal.read_manifest(tmp_path / "i")) == (0, before)
    for said in (
        f"left out: 1 image of {tmp_path / 'asked'} that the index holds",
        "4 images of enrolled classes, 12 images of others; --reject=0.2, in %:",
    ):
        assert said in text
    answers = {name: index.classify(each, reject=0.2) for name, each in files.items()}
    right = [a.name == name for name in ("red", "green") for a in answers[name]]
    named = np.array([a.name != "unknown" for i in range(6) for a in answers[f"s{i}"]])
    margins = np.array([a.margin for i in range(6) for a in answers[f"s{i}"]])
    shown = dict(re.findall(r"  (\w[\w ]*\w) +measured +([\d.]+)", text))
    assert float(shown["right"]) == pytest.approx(100 * np.mean(right), abs=0.051)
    assert float(shown["strangers accepted"]) == pytest.approx(100 * np.mean(named), abs=0.051)
    limit = np.sort(margins)[-3]  # two of twelve reach more
    known = [a for name in ("red", "green") for a in answers[name]]
    best = [a.classes[0][0] for a in known]
    truth = ["red"] * 3 + ["green"]
    share = np.mean([a.margin > limit and b == t for a, b, t in zip(known, best, truth, strict=True)])
    assert re.search(rf"if 16\.7 .* were accepted, {100 * share:.1f} .* would be right", text), text


def test_the_unseen_classes_of_a_run(tmp_path):
    """They are the exported embeddings of the same checkpoint, with the gallery if there is one."""
    from dml_jax.inference.model import Model

    ids, labels = list("abcdefghijkl"), np.arange(12) % 4

    def export(name: str, rows: np.ndarray, step: int, labels: np.ndarray | None = labels) -> None:
        table.write(tmp_path / "embeddings" / name, rows, labels, ids, identity=identity(step))

    def configure(split: str) -> None:
        config = {"data": {"split": split}}
        facts = {"config": config, "data_hash": "", "classes": 4, "images": 9, "shape": [8, 8]}
        write_json(tmp_path / "config.json", facts)

    configure("classes")
    model: Any = SimpleNamespace(directory=tmp_path, identity=identity(7), versions=Versions())
    rows = np.random.default_rng(0).standard_normal((2, 12, 5)).astype(np.float32)
    queries, gallery = rows / np.linalg.norm(rows, axis=2, keepdims=True)
    with pytest.raises(DataError, match=r"test: contains no embeddings .*again with --mode=export"):
        Model.unseen(model)
    export("test", queries, 6)
    with pytest.raises(DataError, match=r"test: was made by another model \(step is 6, not 7\)"):
        Model.unseen(model)
    export("test", queries, 7)
    assert set(map(tuple, Model.unseen(model).rows)) == set(map(tuple, queries))
    export("gallery", gallery, 7)
    found = Model.unseen(model)
    assert set(map(tuple, found.rows)) == set(map(tuple, np.concatenate([queries, gallery])))
    assert sorted({*found.labels.tolist()}) == ["0", "1", "2", "3"]
    export("gallery", 2 * gallery, 7)
    with pytest.raises(DataError, match=r"row 12 of \[24, 5\] has length 2, so it gives no thresh"):
        Model.unseen(model)
    export("gallery", gallery, 7, None)
    with pytest.raises(DataError, match="test and gallery are not of one run with labels"):
        Model.unseen(model)
    configure("all")
    assert [len(part) for part in Model.unseen(model)] == [0, 0, 0]


def test_one_command_at_a_time(photos, tmp_path):
    """The second waits until the first has written; no class is lost."""
    path = tmp_path / "i"
    index = Index(Colours())
    index.add({"old": photos["red"]})
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / "i.update"):
            arguments = ["--model=w", f"--index={path}", str(tmp_path / "gallery")]
            waiting = pool.submit(enroll.execute, arguments)
            time.sleep(0.2)  # it could embed its images now, if it did not wait
            index.rename("old", "red")
            index.save(path)
        waiting.result(60)
    assert Index.load(Colours(), path).classes == ["red", "blue", "green", "grey"]
    assert not list(tmp_path.glob(".*"))


def test_unusable_and_ignored_files(photos, tmp_path, execute):
    """As `prepare`: hidden files and those of file managers are ignored, the others are listed."""
    gallery, command = tmp_path / "gallery", (enroll, "--model=w", f"--index={tmp_path / 'i'}")
    for name in (".hidden.png", "Thumbs.db", "__MACOSX/a.png", ".git/a.png", "bad\x1b.png"):
        (gallery / "red" / name).parent.mkdir(exist_ok=True)
        (gallery / "red" / name).write_text("no")
    reason = f"{gallery}/red/bad\\x1b.png: not an image\n"
    assert execute(*command, "--strict", gallery)[::2] == (2, f"error: {reason}")
    assert execute(*command, gallery)[::2] == (0, f"left out: {reason}")
    enrolled = Index.load(Colours(), tmp_path / "i").images
    assert sorted(enrolled) == sorted(file for files in photos.values() for file in files)
    tabbed, bad = (picture(tmp_path / "new" / "x\t\x1b[2J.png", "red"), gallery / "red" / "bad\x1b.png")
    code, text, _ = execute(*command, "--classify", tabbed, bad)
    assert (code, text.count("\n"), "\x1b" in text) == (0, 2, False)
    shown = str(tabbed).replace("\t", r"\t").replace("\x1b", r"\x1b")
    assert text.splitlines()[1].split(",")[0] == shown
    code, _, err = execute(*command, "--classify", bad)
    assert (code, "none of the images can be used" in err) == (2, True)


def test_names_of_classes_follow_one_rule(photos, tmp_path, execute):
    """Those of folders and of the command line; near-equal ones are named, and refused where they
    would mislead."""
    (tmp_path / "gallery" / "red").rename(tmp_path / "gallery" / "red ")
    command = enroll, "--model=w", f"--index={tmp_path / 'i'}"
    assert execute(*command, tmp_path / "gallery")[0] == 0
    assert execute(*command, "--rename=  red:Gray red ", "--remove=blue\t")[0] == 0
    assert Index.load(Colours(), tmp_path / "i").classes == ["green", "grey", "Gray red"]
    picture(tmp_path / "later" / "gray_red" / "1.png", "red")
    code, _, err = execute(*command, f"--check={tmp_path / 'later'}")
    message = "the class 'gray_red' would count as a stranger, but 'Gray red' is enrolled"
    assert (code, message in err) == (2, True)
    out = execute(*command, tmp_path / "later")[1]
    assert "near-equal names of different classes; if they are one class, --merge='gray_red:" in out
    for i, split in enumerate(("train", "valid", "test")):
        picture(tmp_path / "new" / "colours" / split / "red" / "1.png", "red", i)
        picture(tmp_path / "new" / "colours" / split / "blue" / "1.png", "blue", i)
    assert execute(enroll, "--model=w", f"--index={tmp_path / 'j'}", tmp_path / "new")[0] == 0
    found = Index.load(Colours(), tmp_path / "j")
    assert (found.classes, len(found.images)) == (["blue", "red"], 6)


class Tiny(tiny_model.Tiny):
    """A model without images of other classes."""

    unseen, training_classes = Alone.unseen, lambda self: []


@pytest.mark.parametrize(("source", "session"), [("table.csv", r"day\d"), ("prepared", "day"), ("prepared", r"day\d")])
def test_tables_and_prepared_data_sets(source, session, tmp_path, monkeypatch, execute):
    """They are enrolled, skipped the second time and checked like the folder of the same images."""
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.chdir(tmp_path)
    files = [f"photos/c{c}/day{i % 2} {i}.jpg" for c in range(6) for i in range(4)]
    for i, name in enumerate(files):
        pictures.write(tmp_path / name, i)
    lines = [f"{name},{name[7:9]},{name[10:14]}" for name in files]
    Path("table.csv").write_text("\n".join(["path,label,day", *lines]))
    prepare.execute(["--name=csv", "--source=table.csv", "--output=prepared", "--quiet"])
    command = enroll, "--model=w", "--index=i"
    code, out, err = execute(*command, f"--session={session}", source)
    assert (code, err) == (0, "")
    assert "i: 24 images enrolled; now 24 images of 6 classes" in out
    assert "whole sessions left out, of 2 (day0, day1)" in out
    index = Index.load(Tiny(), "i")

    def rows(names: Sequence[str]) -> np.ndarray:
        return Tiny().embed([Path("photos", *Path(name).parts[-2:]) for name in names])

    np.testing.assert_allclose(index.embeddings, rows(index.images), atol=1e-6)
    parts = [Path(name).parts[-2:] for name in index.images]
    assert [index.classes[label] for label in index.labels] == [folder for folder, _ in parts]
    assert index.photographs.sessions.tolist() == [name[:4] for _, name in parts]
    assert "i: nothing new; 24 images enrolled already; now 24 images of 6" in execute(*command, source)[1]
    assert "the index holds all of these images" in execute(*command, f"--check={source}")[2]
    Path("again", "x").mkdir(parents=True)
    shutil.copy(files[0], "again/x/1.jpg")  # the other one is not gone, wherever the data set keeps it
    assert "1 image enrolled; " in execute(*command, "again")[1]
