"""Enrolled classes: the index, the command, and their error messages."""

import csv
import errno
import json
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

import dml_jax
from dml_jax import seal, table
from dml_jax.commands import enroll, prepare
from dml_jax.errors import DataError
from dml_jax.evaluation import expectations, open_set
from dml_jax.evaluation.open_set import Photographs
from dml_jax.files import locked, write_json
from dml_jax.identity import Versions
from dml_jax.inference import enrollment
from dml_jax.inference import index as indexes
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.inference.index import Index
from tests import tiny_model
from tests.data import pictures
from tests.tiny_model import identity

COLOURS = {
    "red": (250, 10, 10),
    "green": (10, 250, 10),
    "blue": (10, 10, 250),
    "grey": (120, 120, 120),
}


class Colours:
    """A stand-in for a model, whose embedding is the normalised mean colour minus grey."""

    identity, method_distance, runtime = identity(0), False, "jax"
    lacks_graph = False
    shape, listed = (8, 8), EmbeddingModel.listed

    def unseen(self):
        """Twenty classes of ten images in all directions."""
        rng = np.random.default_rng(0)
        rows = np.repeat(rng.standard_normal((20, 4)), 10, axis=0) + 0.1 * rng.standard_normal(
            (200, 4)
        )
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        names = [f"other {i}" for i in range(20)]
        return Photographs(rows, np.arange(200) // 10, np.tile(["a", "b"], 100)), names

    def training_classes(self):
        return []

    def read(self, image, name="image"):
        return self.embed([image])

    def embed(self, images):
        rows = []
        for image in images:
            try:
                pixels = image if isinstance(image, np.ndarray) else np.asarray(Image.open(image))
            except OSError:
                raise DataError(f"{image}: not an image") from None
            rows.append(np.append(pixels.reshape(-1, 3).mean(axis=0) - 100, 1.0))
        return (np.array(rows) / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def picture(path, colour, level=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), tuple(min(value + level, 255) for value in COLOURS[colour])).save(path)
    return str(path)


@pytest.fixture
def photos(tmp_path: Path) -> dict[str, list[str]]:
    """Three images per colour, in gallery/<colour>."""
    return {
        c: [picture(tmp_path / "gallery" / c / f"{i}.png", c, 9 * i) for i in range(3)]
        for c in COLOURS
    }


def names(answers):
    return [answer.name for answer in answers]


def test_enroll_classify_add(photos, tmp_path, monkeypatch):
    index = Index(Colours())
    index.add({name: photos[name][:2] for name in ("red", "green")})
    asked = [photos["green"][2], photos["red"][2], photos["blue"][0]]
    assert names(index.classify(asked, reject=0.1)) == ["green", "red", "unknown"]
    assert names(index.classify(asked))[2] in ("red", "green")
    on_device = jax.device_put(Colours().embed(asked))
    assert names(index.classify(on_device, reject=0.1)) == ["green", "red", "unknown"]
    index.add({"blue": [np.asarray(Image.open(photos["blue"][1]))], "red": photos["red"][2:]})
    assert names(index.classify(asked, reject=0.3)) == ["green", "red", "blue"]
    assert (index.classes, index.labels.tolist()) == (["red", "green", "blue"], [0, 0, 1, 1, 2, 0])
    others = Colours().unseen()[0]
    rows = np.concatenate([index.embeddings, others.rows])
    classifier = open_set.fit(rows, np.concatenate([index.labels, 3 + others.labels]))
    scores = classifier.scores(Colours().embed(asked))[:, :3] / index.fitted()[1].temperature
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for answer, row in zip(index.classify(asked, top=2), shares, strict=True):
        best = np.argsort(-row)[:2]
        assert [name for name, _ in answer.classes] == [index.classes[i] for i in best]
        np.testing.assert_allclose([p for _, p in answer.classes], row[best], rtol=1e-4)
        assert answer.probability == answer.classes[0][1]
        assert index.labels[answer.nearest] == best[0]
    margins = [answer.margin for answer in index.classify(asked)]
    accepted = [margin >= np.mean(margins) for margin in margins]
    found = names(index.classify(asked, threshold=float(np.mean(margins))))
    assert [name != "unknown" for name in found] == accepted
    assert names(index.classify(asked, threshold=99)) == ["unknown"] * 3

    index.save(tmp_path / "index")
    stored = Colours()
    stored.unseen = None  # not needed any more
    again = Index.load(stored, tmp_path / "index")
    assert (again.classes, again.images) == (index.classes, index.images)
    with monkeypatch.context() as patch:
        patch.setattr(open_set, "measure", None)  # neither of them is needed any more
        patch.setattr(open_set, "fit", None)
        assert again.classify(asked, reject=0.1) == index.classify(asked, reject=0.1)
        assert again.expect(reject=0.1) == index.expect(reject=0.1)
        patch.setattr(expectations, "rejecting", None)  # `serve` asks for each batch
        assert again.classify(asked, reject=0.1) == index.classify(asked, reject=0.1)
    again.remove("blue")
    assert again.expect(reject=0.1).limit != index.expect(reject=0.1).limit
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


class Alone(Colours):
    """A model without images of other classes, trained on some."""

    trained = ()

    def unseen(self):
        return Photographs(np.zeros((0, 0)), np.zeros(0, int), np.zeros(0, "U1")), []

    def training_classes(self):
        return list(self.trained)


def test_each_enrolled_class_plays_the_stranger_if_there_is_no_other(tmp_path):
    """Not those that the run was trained on, unless there are too few; the report says so."""
    colours = {f"c{i}": [(40 * i, 255 - 40 * i, 99 + 20 * j) for j in range(3)] for i in range(7)}
    images = {
        name: [np.full((4, 4, 3), colour, np.uint8) for colour in each]
        for name, each in colours.items()
    }
    index, model = Index(Alone()), Alone()
    index.add(images, {name: list("abc") for name in images})
    measured = index.fitted()[1]
    assert np.bincount(measured.strangers["label"]).tolist() == [3] * 7
    kept = index.labels != 4
    scores = open_set.fit(index.embeddings[kept], index.labels[kept]).scores(
        index.embeddings[~kept]
    )
    margins = open_set.margins(scores, np.ones(6, bool))[1]
    np.testing.assert_allclose(
        measured.strangers["margin"][measured.strangers["label"] == 4], margins, atol=1e-5
    )
    text = enrollment.report(index)
    assert "7 enrolled classes are left out in turn and play the strangers; --calibrate" in text
    assert "trained" not in text
    for trained, playing in ((["c0", "c6"], 5), (["c0", "c1", "c2"], 7)):
        model.trained = trained
        index = Index(model)
        index.add(images, {name: list("abc") for name in images})
        assert len(np.unique(index.fitted()[1].strangers["label"])) == playing
        said = "the run was trained on some of them" in enrollment.report(index)
        assert said == (playing == 7)
    one = Index(Alone())
    one.add({"c0": images["c0"]})
    (answer,) = one.classify(images["c5"][:1])
    assert (answer.name, answer.probability) == ("c0", 1)
    single = Index(Alone())
    single.add({"c0": images["c0"][:1]})
    assert "from 0 images of 0 classes as if enrolled" in enrollment.report(single)
    one.save(tmp_path / "one")
    assert Index.load(Alone(), tmp_path / "one").classify(images["c5"][:1]) == [answer]
    assert "too few strangers" in enrollment.report(one, expectations.Choice("reject", 0.1))


def test_merge(photos):
    index = Index(Colours())
    index.add({name: photos[name] for name in ("red", "green", "blue")})
    before = index.embeddings.copy()
    index.merge("red", "blue")
    assert (index.classes, index.labels.tolist()) == (
        ["blue", "green"],
        [0] * 3 + [1] * 3 + [0] * 3,
    )
    np.testing.assert_array_equal(index.embeddings, before)
    assert names(index.classify(photos["red"])) == ["blue"] * 3
    for pair, message in ((("plum", "blue"), "plum: is not enrolled"), (("blue",) * 2, "itself")):
        with pytest.raises(DataError, match=message):
            index.merge(*pair)


def test_remove(photos):
    index, other = Index(Colours()), Index(Colours())
    index.add({name: photos[name] for name in ("red", "green", "blue")})
    assert index.remove("green") == 3
    other.add({name: photos[name] for name in ("red", "blue")})
    assert (index.classes, index.images, index.labels.tolist()) == (
        other.classes,
        other.images,
        [0, 0, 0, 1, 1, 1],
    )
    np.testing.assert_array_equal(index.embeddings, other.embeddings)
    assert names(index.classify(photos["green"][:1])) != ["green"]
    index.add({"green": photos["green"]})
    assert names(index.classify(photos["green"])) == ["green"] * 3


def test_failed_enrolment_changes_nothing(photos, tmp_path):
    index = Index(Colours())
    index.add({"red": photos["red"]})
    (tmp_path / "no.png").write_text("no")
    for classes, message in (
        ({"unknown": photos["green"]}, "'unknown': cannot be a class name"),
        ({"le\u0301gume": photos["green"]}, r"composed form \(NFC\)"),
        ({"green": [*photos["green"], tmp_path / "no.png"]}, "no.png: not an image"),
        ({0: photos["green"]}, "0: cannot be a class name; give a text"),
        ({"green": []}, "green: give a list of one or more images"),
        ({"green": photos["green"][0]}, "green: give a list of one or more images"),
        ({"green": iter(photos["green"]), "blue": photos["blue"]}, "green: give a list of"),
        ({"green": np.zeros((8, 8, 3), np.uint8)}, "green: give a list of one or more images"),
    ):
        with pytest.raises(DataError, match=message):
            index.add(classes)
        assert (index.classes, len(index.images), index.embeddings.shape) == (["red"], 3, (3, 4))
    for change in (index.add, index.calibrate):
        for taken in ({"green": ["a"]}, {"blue": ["a"] * 3}):
            with pytest.raises(DataError, match=r"sessions of green: [01], but 3 images; give one"):
                change({"green": photos["green"]}, taken)
    assert (index.classes, len(index.images), len(index.sessions)) == (["red"], 3, 3)
    with pytest.raises(DataError, match="the index is empty"):
        Index(Colours()).classify(photos["red"])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(bytes(content))


@pytest.fixture
def stored(photos, tmp_path):
    """An index with calibration, in a directory."""
    index = Index(Colours())
    index.add({name: photos[name] for name in ("red", "green")})
    index.calibrate({"blue": photos["blue"]})
    index.save(tmp_path / "i")
    return tmp_path / "i"


def test_damaged_indexes(stored, monkeypatch, fails):
    """Any file flipped, cut, lost or of another index is named, whatever is to be done with it."""
    whole, other = stored.with_name("whole"), stored.with_name("other")
    shutil.copytree(stored, whole)
    index = Index.load(Colours(), stored)
    index.rename("red", "plum")
    index.merge("green", "plum")
    index.save(other)
    names = [path.relative_to(stored) for path in stored.rglob("*") if path.is_file()]
    assert len(names) == 12
    for name in names:
        for change in (
            flip,
            lambda file: file.write_bytes(file.read_bytes()[:-2]),
            lambda file: file.unlink(),
            lambda file, name=name: shutil.copy(other / name, file),
        ):
            change(stored / name)
            equal = (stored / name).exists() and (stored / name).read_bytes() == (
                whole / name
            ).read_bytes()
            if not equal and name != Path("manifest.json"):
                with pytest.raises(DataError, match=rf"{name}: .*; enroll again$"):
                    Index.load(Colours(), stored)
            elif not equal and change is flip:
                with pytest.raises(DataError, match=r"manifest\.json: .*; enroll again$"):
                    Index.load(Colours(), stored)
            shutil.copy(whole / name, stored / name)
    assert Index.load(Colours(), stored).classes == ["red", "green"]
    model = Colours()
    model.identity = identity(1)
    with pytest.raises(DataError, match=r"was made by another model \(step is 0, not 1\); give "):
        Index.load(model, stored)
    flip(stored / "classifier.npz")
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    for arguments in (["--list"], ["--classify", "x.png"], ["--rename=red:a"], ["--remove=red"]):
        (stored.parent / "x.png").touch()
        assert "has changed since it was written; enroll again" in fails(
            enroll, "--model=w", f"--index={stored}", *arguments
        )


def test_an_index_is_whole_whatever_file_operation_fails(stored):
    countdown = [0]

    def fail(event, arguments):
        if countdown[0] and event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            countdown[0] -= 1
            if not countdown[0]:
                raise OSError(errno.EIO, "disk")

    sys.addaudithook(fail)  # cannot be removed, but the countdown stays 0
    for after in range(1, 999, 4):
        index = Index.load(Colours(), stored)
        index.rename(index.classes[0], f"after {after}")
        index.fitted()
        countdown[0] = after
        with suppress(OSError):
            index.save(stored)
        if countdown[0]:  # there are fewer operations
            break
        assert Index.load(Colours(), stored).classes[1] == "green"
    countdown[0] = 0
    assert 20 < after < 999


def test_images_are_known_by_content(photos, tmp_path, monkeypatch, execute):
    """A moved folder, a replaced file, other sessions: what is embedded, and the line that says
    so."""
    embedded = []

    class Counting(Colours):
        def embed(self, images):
            embedded.extend(images)
            return super().embed(images)

    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Counting())
    command = enroll, "--model=w", f"--index={tmp_path / 'i'}"

    def run(*arguments):
        embedded.clear()
        code, out, err = execute(*command, *arguments)
        assert (code, err) == (0, "")
        return out.splitlines()[0].partition(": ")[2], len(embedded)

    assert run(tmp_path / "gallery")[1] == 12
    before = Index.load(Counting(), tmp_path / "i")
    (tmp_path / "gallery").rename(tmp_path / "moved")
    now = "skipped 12 enrolled images; now 12 images of 4 classes"
    assert run(tmp_path / "moved") == (f"12 images found at another path; {now}", 0)
    index = Index.load(Counting(), tmp_path / "i")
    np.testing.assert_array_equal(index.embeddings, before.embeddings)
    assert {Path(name).parts[-3] for name in index.images} == {"moved"}
    picture(tmp_path / "moved" / "red" / "1.png", "red", 5)
    text, count = run(tmp_path / "moved")
    assert text.startswith("enrolled 1 image of 1 class; 1 image replaced, as the file has changed")
    assert (text.endswith("; now 12 images of 4 classes"), count) == (True, 1)
    index = Index.load(Counting(), tmp_path / "i")
    expected = Colours().embed(index.images)
    np.testing.assert_allclose(index.embeddings, expected, atol=1e-6)
    text, count = run(tmp_path / "moved", r"--session=(\d)")
    assert text == f"12 images with another session than before; {now}"
    assert sorted(Index.load(Counting(), tmp_path / "i").sessions) == sorted("012" * 4)
    assert run(tmp_path / "moved", r"--session=(\d)") == (now, 0)
    assert run(tmp_path / "moved") == (now, 0)  # they are not forgotten
    shutil.copy(tmp_path / "moved" / "red" / "0.png", tmp_path / "moved" / "red" / "copy.png")
    assert run(tmp_path / "moved")[1] == 0


def test_an_index_of_a_model_with_other_dimensions(photos):
    index = Index(Colours())
    index.add({name: photos[name] for name in ("red", "green")})
    index.embeddings = index.embeddings[:, :3]
    message = "embeddings of 4 dimensions cannot be compared with those of the index, which have 3"
    for act in (
        lambda: index.classify(photos["red"]),
        lambda: index.add({"blue": photos["blue"]}),
        lambda: index.calibrate({"blue": photos["blue"]}),
    ):
        with pytest.raises(DataError, match=message):
            act()


def with_value(array, position, value):
    changed = array.copy()
    changed[position] = value
    return changed


def test_classify_refuses_rows_that_are_no_embeddings(photos):
    index = Index(Colours())
    index.add({name: photos[name] for name in ("red", "green")})
    rows = Colours().embed(photos["green"])
    for equal in (rows.astype(np.float64), (rows * 1.001).astype(np.float16)):
        assert names(index.classify(equal)) == names(index.classify(rows)) == ["green"] * 3
    for given, message in (
        (
            with_value(rows, (1, 2), np.nan),
            r"images: row 1 of \[3, 4\] is not finite; give finite rows of unit",
        ),
        (with_value(rows, 2, -np.inf), r"images: row 2 of \[3, 4\] is not finite"),
        (10 * rows, r"images: row 0 of \[3, 4\] has length 10; give finite rows of unit length"),
        (with_value(rows, 1, 0), r"images: row 1 of \[3, 4\] has length 0"),
        (1e30 * rows, r"images: row 0 of \[3, 4\] has length inf"),
        (
            rows[:, :3],
            "embeddings of 3 dimensions cannot be compared with those of the index, which have 4",
        ),
        (rows[:0], r"images: float32 \[0, 4\]; give embeddings"),
        (np.zeros((8, 4), np.uint8), r"images: uint8 \[8, 4\]; give embeddings"),
        (rows.astype(str), r"images: <U32 \[3, 4\]; give embeddings"),
    ):
        with pytest.raises(DataError, match=message):
            index.classify(given)
    with pytest.raises(DataError, match="threshold=nan: must be a number"):
        index.classify(rows, threshold=float("nan"))


def test_an_image_without_direction_is_not_enrolled(photos, monkeypatch):
    index = Index(Colours())
    monkeypatch.setattr(
        Colours, "embed", lambda self, images: np.zeros((len(images), 4), np.float32)
    )
    with pytest.raises(DataError, match=r"red/0\.png: its embedding has length 0; leave it out"):
        index.add({"red": photos["red"]})
    assert index.classes == []


def test_the_same_image_in_two_classes_is_named_and_kept(photos, tmp_path, monkeypatch, execute):
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    for name in ("lime", "mint"):
        (tmp_path / "gallery" / name).mkdir()
    copies = [
        str(shutil.copy(photos["green"][i], tmp_path / f"gallery/{name}/{name}.png"))
        for i, name in ((0, "lime"), (2, "mint"))
    ]
    command = ["--model=w", f"--index={tmp_path / 'i'}"]
    code, text, _ = execute(enroll, *command, tmp_path / "gallery")
    found = [line for line in text.splitlines() if "the same image" in line]
    assert (code, len(found)) == (0, 2)
    for line, copy, (name, original) in zip(
        found, copies, (("lime", photos["green"][0]), ("mint", photos["green"][2])), strict=True
    ):
        both = f"the same image is in the classes green and {name}: {original} and {copy}; "
        assert line == f"warning: {both}one label at most is right, all are kept"
    assert "the same image" not in execute(enroll, *command, tmp_path / "gallery")[1]
    index = Index.load(Colours(), tmp_path / "i")
    assert len(index.images) == 14
    third = str(shutil.copy(copies[0], tmp_path / "third.png"))
    index.add({"plum": [third]})
    assert index.shared(14) == [{"green": photos["green"][0], "lime": copies[0], "plum": third}]
    index.add({"blue": [str(shutil.copy(photos["blue"][1], tmp_path / "twin.png"))]})
    assert index.shared(15) == []  # its equal is of the same class
    many = {
        f"class {i}": [shutil.copy(photos["grey"][0], tmp_path / f"{i}.png")] for i in range(13)
    }
    monkeypatch.setattr(indexes, "BLOCK_ELEMENTS", 30)
    index.add(many)
    assert [len(each) for each in index.shared(15)] == list(range(2, 15))


def test_the_command(photos, tmp_path, monkeypatch, execute):
    def run(*arguments):
        code, out, err = execute(enroll, "--model=w", f"--index={file}", *arguments)
        assert err.count("\n") == (code == 2)
        return code, out + err

    file, new = tmp_path / "i", picture(tmp_path / "new" / "x.png", "blue", 4)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    gallery, later = tmp_path / "gallery", tmp_path / "later"
    later.mkdir()
    (gallery / "blue").rename(later / "blue")
    assert run("--classify", gallery) == (
        2,
        f"error: --index={file}: there is no index; enroll classes first\n",
    )
    picture(gallery / "red" / "9.png", "red", 5)
    (gallery / "red" / "notes.txt").write_text("text")
    for arguments, said in (
        ([gallery], "enrolled 10 images of 3 classes; now 10 images of 3 classes"),
        ([later], "enrolled 3 images of 1 class; now 13 images of 4 classes"),
        ([gallery, later], "i: skipped 13 enrolled images; now 13 images of 4 classes\n"),
        (
            ["--remove=blue", "--remove=red"],
            "7 images of removed classes forgotten; enrolling their folder again brings them back",
        ),
        (
            ["--remove=grey", later],
            "removed grey; enrolled 3 images of 1 class; now 6 images of 2 classes",
        ),
        (["--rename=green:lime"], "renamed green:lime; now 6 images of 2 classes"),
    ):
        before = seal.stated(file).sha256 if file.exists() else ""
        code, text = run(*arguments)
        assert (code, said in text, "strangers accepted" in text) == (0, True, True), text
        assert (seal.stated(file).sha256 == before) == said.startswith("i: ")
    assert run("--list") == (0, "3\tlime\n3\tblue\n")
    assert not [path for path in file.rglob("*.json") if "grey" in path.read_text()]
    code, text = run("--classify", "--reject=0.3", new)
    header, row = csv.reader(text.splitlines())
    assert header == [
        *("image", "answer", "class_1", "probability_1", "class_2", "probability_2"),
        *("margin", "nearest"),
    ]
    found = dict(zip(header, row, strict=True))
    assert (code, found["image"], found["answer"]) == (0, new, "blue")
    assert (found["class_1"], found["class_2"]) == ("blue", "lime")
    assert float(found["probability_1"]) + float(found["probability_2"]) == pytest.approx(1)
    assert Path(found["nearest"]).parent.name == "blue"
    limit = f"--threshold={float(found['margin']) + 0.01}"
    code, text = run("--classify", limit, "--top=1", "--format=json", new)
    (image,) = json.loads(text)["images"]
    assert (image["image"], image["class"], image["nearest"]) == (new, "unknown", found["nearest"])
    (first,) = image["classes"]
    assert first["class"] == "blue"
    assert first["probability"] == pytest.approx(float(found["probability_1"]), abs=1e-4)
    asked = tmp_path / "asked"
    picture(asked / "blue" / "n.png", "blue", 3)
    picture(asked / "plum" / "n.png", "grey", 1)
    shutil.copy(later / "blue" / "0.png", asked / "blue" / "copy.png")
    shutil.copytree(file, tmp_path / "before")
    with locked(file.with_name("i.update")):  # does not wait, as it changes nothing
        code, text = run(f"--check={asked}", "--reject=0.3")
    assert (code, "left out: 1 image of" in text) == (0, True)
    assert "1 image of enrolled classes, 1 image of others; --reject=0.3, in %:" in text
    assert re.search(r"right +measured 100\.0  expected .* the interval\n", text)
    assert re.search(r"unknown +measured +0\.0  expected", text)
    assert seal.stated(file) == seal.stated(tmp_path / "before")
    assert "the index holds all of these images" in run(f"--check={later}")[1]
    assert "merged blue:lime; now 6 images of 1 class" in run("--merge=blue:lime")[1]
    code, text = run("--remove=lime")
    assert (code, "the index is empty" in text) == (0, True)
    shutil.rmtree(file)
    (tmp_path / "before").rename(file)

    def without_embeddings(self):
        raise DataError("test: contains no embeddings")

    file.rename(tmp_path / "kept")
    with monkeypatch.context() as patch:
        patch.setattr(Colours, "unseen", without_embeddings)
        assert run(later) == (2, "error: test: contains no embeddings\n")
    assert not file.exists()
    (tmp_path / "kept").rename(file)
    picture(tmp_path / "twice" / "red" / "r.png", "red")
    for arguments, message in (
        ((), "DIRECTORY|IMAGE: missing"),
        ((gallery, tmp_path / "twice"), "also has a class red"),
        (
            ("--list", "--remove=red"),
            "--list and --classify: change and check nothing; leave the other options out",
        ),
        (("--list", gallery), "--list: reads no images; leave DIRECTORY|IMAGE and --classify out"),
        ((tmp_path / "none",), "there is no such directory"),
        (("--rename=blue:lime",), "'lime' is already a class name; choose another"),
        (("--rename=blue",), "--rename: blue: must be two names"),
        ((later, "--session=^x_"), "session=^x_: fits none of 3 images, e.g."),
        ((later, "--session=("), "session=(: is neither a column nor a regular expression"),
        (("--merge=blue",), "--merge: blue: must be two names"),
        (("--classify", "--top=0", new), "--top=0: must be 1 or more"),
        (("--classify", "--reject=0.001", new), "too few strangers; give --calibrate=DIRECTORY"),
        (("--remove=bleu",), "bleu: is not enrolled; did you mean blue?"),
        (("--classify", "--reject=1", new), "reject=1: must be above 0 and below 1"),
        (("--classify", "--reject=.1", "--threshold=.5", new), "--threshold: not allowed with"),
    ):
        code, text = run(*arguments)
        assert (code, message in text) == (2, True), text


def test_the_causes_of_many_wrong_answers(photos, tmp_path):
    index = Index(Colours())
    levels = {"red": [0, 60, 1, 61], "scarlet": [62, 2, 63, 3], "other 3": [0, 1, 2, 3]}
    colours = {"other 3": "blue"}
    images = {
        name: [
            picture(tmp_path / name / f"{i}.png", colours.get(name, "red"), level)
            for i, level in enumerate(each)
        ]
        for name, each in levels.items()
    }
    index.add(images, {name: ["a", "b"] * 2 for name in images})
    line = enrollment._causes(index)
    for cause in (
        "classes look alike: red as scarlet (4), scarlet as red (4): enroll more images",
        "3 classes with fewer than 5 images (red, scarlet, other 3): enroll more",
    ):
        assert cause in line
    assert "1 other class is enrolled and left out (other 3); 19 classes remain" in (
        enrollment.report(index)
    )


def test_the_unseen_classes_of_a_run(tmp_path):
    """They are the exported embeddings of the same checkpoint, with the gallery if there is one."""
    from dml_jax.inference.model import Model

    def export(name, rows, step):
        table.write(
            tmp_path / "embeddings" / name,
            rows,
            labels,
            list("abcdefghijkl"),
            identity=identity(step),
        )

    def configure(split):
        config = {"data": {"split": split}}
        facts = {"config": config, "data_hash": "", "classes": 4, "images": 9, "shape": [8, 8]}
        write_json(tmp_path / "config.json", facts)

    configure("classes")
    model = SimpleNamespace(directory=tmp_path, identity=identity(7), versions=Versions())
    rng, labels = np.random.default_rng(0), np.arange(12) % 4
    queries, gallery = rng.standard_normal((2, 12, 5)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    with pytest.raises(DataError, match=r"test: contains no embeddings .*again with --mode=export"):
        Model.unseen(model)
    export("test", queries, 6)
    with pytest.raises(DataError, match=r"test: was made by another model \(step is 6, not 7\)"):
        Model.unseen(model)
    export("test", queries, 7)
    assert set(map(tuple, Model.unseen(model)[0].rows)) == set(map(tuple, queries))
    export("gallery", gallery, 7)
    found, names = Model.unseen(model)
    assert set(map(tuple, found.rows)) == set(map(tuple, np.concatenate([queries, gallery])))
    assert names == ["0", "1", "2", "3"]
    export("gallery", 2 * gallery, 7)
    with pytest.raises(
        DataError, match=r"row 12 of \[24, 5\] has length 2, so it gives no threshold"
    ):
        Model.unseen(model)
    table.write(
        tmp_path / "embeddings/gallery", gallery, None, list("abcdefghijkl"), identity=identity(7)
    )
    with pytest.raises(DataError, match="test and gallery are not of one run with labels"):
        Model.unseen(model)
    configure("all")
    assert [len(part) for part in Model.unseen(model)[0]] == [0, 0, 0]


def test_one_command_at_a_time(photos, tmp_path, monkeypatch):
    """The second waits until the first has written; no class is lost."""
    path = tmp_path / "i"
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    index = Index(Colours())
    index.add({"old": photos["red"]})
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / "i.update"):
            waiting = pool.submit(
                enroll.execute, ["--model=w", f"--index={path}", str(tmp_path / "gallery")]
            )
            time.sleep(0.2)  # it could embed its images now, if it did not wait
            index.rename("old", "red")
            index.save(path)
        waiting.result(60)
    assert Index.load(Colours(), path).classes == ["red", "blue", "green", "grey"]
    assert not list(tmp_path.glob(".*"))


def test_unusable_and_ignored_files(photos, tmp_path, monkeypatch, execute):
    """As `prepare`: hidden files and those of file managers are ignored, the others are
    listed."""
    gallery, model = tmp_path / "gallery", Colours()
    for name in (".hidden.png", "Thumbs.db", "__MACOSX/a.png", ".git/a.png", "bad\x1b.png"):
        (gallery / "red" / name).parent.mkdir(exist_ok=True)
        (gallery / "red" / name).write_text("no")
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: model)
    index, reason = f"--index={tmp_path / 'i'}", f"{gallery}/red/bad\\x1b.png: not an image\n"
    assert execute(enroll, "--model=w", "--strict", index, gallery)[::2] == (2, f"error: {reason}")
    assert execute(enroll, "--model=w", index, gallery)[::2] == (
        0,
        f"left out: {reason}",
    )
    enrolled = Index.load(model, tmp_path / "i").images
    assert sorted(enrolled) == sorted(file for files in photos.values() for file in files)
    tabbed = picture(tmp_path / "new" / "x\t\x1b[2J.png", "red")
    code, text, _ = execute(
        enroll,
        "--model=w",
        index,
        "--classify",
        tabbed,
        gallery / "red" / "bad\x1b.png",
    )
    assert (code, text.count("\n"), "\x1b" in text) == (0, 2, False)
    shown = str(tabbed).replace("\t", r"\t").replace("\x1b", r"\x1b")
    assert text.splitlines()[1].split(",")[0] == shown


def test_names_of_classes_follow_one_rule(photos, tmp_path, monkeypatch, execute):
    """Those of folders and of the command line; near-equal ones are named, and refused where they
    would mislead."""
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    (tmp_path / "gallery" / "red").rename(tmp_path / "gallery" / "red ")
    index = f"--index={tmp_path / 'i'}"
    assert execute(enroll, "--model=w", index, tmp_path / "gallery")[0] == 0
    assert Index.load(Colours(), tmp_path / "i").classes == ["blue", "green", "grey", "red"]
    assert (
        execute(enroll, "--model=w", index, "--rename=  red:Gray red ", "--remove=blue\t")[0] == 0
    )
    assert Index.load(Colours(), tmp_path / "i").classes == ["green", "grey", "Gray red"]
    picture(tmp_path / "later" / "gray_red" / "1.png", "red")
    code, _, err = execute(enroll, "--model=w", index, f"--check={tmp_path / 'later'}")
    message = "the class 'gray_red' would count as a stranger, but 'Gray red' is enrolled"
    assert (code, message in err) == (2, True)
    code, out, _ = execute(enroll, "--model=w", index, tmp_path / "later")
    assert (
        code,
        "near-equal names of different classes; if they are one class, --merge='gray_red:Gray red'"
        in out,
    ) == (0, True)
    picture(tmp_path / "twice" / "grey-red" / "1.png", "red", 1)
    picture(tmp_path / "twice" / "Grey red" / "2.png", "red", 2)
    picture(tmp_path / "other" / "Grey_red" / "3.png", "red", 3)
    for folders in (
        [tmp_path / "twice"],
        [tmp_path / "twice" / "Grey red" / "..", tmp_path / "other"],
    ):
        index = f"--index={tmp_path / folders[-1].name}.npz"
        out = execute(enroll, "--model=w", index, *folders)[1]
        assert out.count("near-equal names") == len(folders)


def test_three_splits_of_the_same_classes_are_enrolled_as_these(
    photos, tmp_path, monkeypatch, execute
):
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    for number, split in enumerate(("train", "valid", "test")):
        for name in COLOURS:
            picture(tmp_path / "new" / "colours" / split / name / "1.png", name, number)
    assert execute(enroll, "--model=w", f"--index={tmp_path / 'i'}", tmp_path / "new")[0] == 0
    index = Index.load(Colours(), tmp_path / "i")
    assert (index.classes, len(index.images)) == (["blue", "green", "grey", "red"], 12)


@pytest.mark.parametrize("distance", ["euclidean", lambda a, b: a @ b.T])
def test_an_index_refuses_another_distance(distance) -> None:
    model = tiny_model.Tiny()
    model._use(model.trained._replace(method=model.trained.method._replace(distance=distance)))
    with pytest.raises(
        DataError, match=r"has another distance than the cosine \(method\.distance\)"
    ):
        Index(model)


class Tiny(tiny_model.Tiny):
    """A model without images of other classes."""

    def unseen(self):
        return Alone().unseen()

    def training_classes(self):
        return []


@pytest.fixture
def same_images(tmp_path, monkeypatch):
    """The same images as a folder, a table and a prepared data set, each with a column of days."""
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.chdir(tmp_path)
    lines = ["path,label,day"]
    for label in range(6):
        for i in range(4):
            name = f"photos/c{label}/day{i % 2} {i}.jpg"
            pictures.write(tmp_path / name, 10 * label + i)
            lines.append(f"{name},c{label},day{i % 2}")
    Path("table.csv").write_text("\n".join(lines))
    prepare.execute(["--name=csv", "--source=table.csv", "--output=prepared", "--quiet"])


@pytest.mark.parametrize(
    ("source", "session"), [("table.csv", r"day\d"), ("prepared", "day"), ("prepared", r"day\d")]
)
def test_tables_and_prepared_data_sets(source, session, same_images, execute):
    """They are enrolled, skipped the second time and checked like the folder of the same images."""
    expected = Index(Tiny())
    files = sorted(Path("photos").glob("*/*"))
    expected.add({f"c{i}": [f for f in files if f.parent.name == f"c{i}"] for i in range(6)})
    command = enroll, "--model=w", "--index=i"
    code, out, err = execute(*command, f"--session={session}", source)
    assert (code, err) == (0, "")
    assert "i: enrolled 24 images of 6 classes; now 24 images of 6 classes" in out
    assert "across sessions (day0, day1)" in out
    index = Index.load(Tiny(), "i")
    assert sorted(index.classes) == expected.classes
    names, wanted = (
        ["/".join(Path(n).parts[-2:]) for n in each.images] for each in (index, expected)
    )
    assert sorted(names) == sorted(wanted)
    rows = expected.embeddings[[wanted.index(name) for name in names]]
    np.testing.assert_allclose(index.embeddings, rows, atol=1e-6)
    assert [index.classes[label] for label in index.labels] == [name[:2] for name in names]
    assert index.sessions == [name[3:7] for name in names]
    out = execute(*command, source)[1]
    assert "i: skipped 24 enrolled images; now 24 images of 6 classes" in out
    code, _, err = execute(*command, f"--check={source}")
    assert (code, err) == (
        2,
        "error: the index holds all of these images; give photographs taken later\n",
    )


def test_dates_that_no_image_has(same_images, execute):
    """The sessions are unknown, with a warning instead of an error."""
    code, out, err = execute(enroll, "--model=w", "--index=i", "--session=date", "photos")
    assert (code, err) == (
        0,
        "warning: --session=date: none of 24 images has an EXIF date, so sessions are unknown; "
        "give folder or a regular expression of the file names instead\n",
    )
    assert "warning: sessions are unknown: " in out
    assert set(Index.load(Tiny(), "i").sessions) == {""}
