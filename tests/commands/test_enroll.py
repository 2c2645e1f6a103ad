"""Enrolled classes: the index, the command, and their error messages."""

import json
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import dml_jax
from dml_jax import config as configs
from dml_jax.commands import cli, embed, enroll
from dml_jax.data.formats import folder
from dml_jax.data.prepare import sources
from dml_jax.errors import CheckpointError, DataError
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import Calibration
from dml_jax.export import embedding_files
from dml_jax.inference import labelled
from dml_jax.inference.index import Index

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250), "grey": (120, 120, 120)}


class Colours:
    """A stand-in for a model, whose embedding is the normalised mean colour minus grey."""

    fingerprint = "of colours"

    def calibrate(self, sizes):
        """All strangers at 0.9 and one in a hundred at 0.95 per enrolled class."""
        strangers = np.full(1000, 0.9, np.float32)
        strangers[1000 - 10 * len(sizes) :] = 0.95
        return Calibration(strangers, np.float32([0.5, 0.96, 1, 1]), 1.0, 500, 9)

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
    return {c: [picture(tmp_path / "gallery" / c / f"{i}.png", c, 9 * i) for i in range(3)] for c in COLOURS}


def test_enroll_classify_add(photos, tmp_path):
    index = Index(Colours())
    index.add({name: photos[name][:2] for name in ("red", "green")})
    asked = [photos["green"][2], photos["red"][2], photos["blue"][0]]
    names, cosines = index.classify(asked)
    assert names == ["green", "red", "unknown"]
    rows, enrolled = (Colours().embed(x).astype(np.float64) for x in (asked, index.images))
    np.testing.assert_allclose(cosines, (rows @ enrolled.T).max(axis=1), atol=1e-6)
    assert index.classify(asked, threshold=-1)[0][2] in ("red", "green")
    index.add({"blue": [np.asarray(Image.open(photos["blue"][1]))], "red": photos["red"][2:]})
    assert index.classify(asked)[0] == ["green", "red", "blue"]
    assert (index.classes, index.labels.tolist()) == (["red", "green", "blue"], [0, 0, 1, 1, 2, 0])

    index.save(tmp_path / "index.npz")
    again = Index.load(Colours(), tmp_path / "index.npz")
    assert (again.classes, again.images) == (index.classes, index.images)
    for one, two in zip(index.nearest(asked), again.nearest(asked), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_remove(photos):
    index, other = Index(Colours()), Index(Colours())
    index.add({name: photos[name] for name in ("red", "green", "blue")})
    index.remove("green")
    other.add({name: photos[name] for name in ("red", "blue")})
    assert (index.classes, index.images, index.labels.tolist()) == (other.classes, other.images, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(index.embeddings, other.embeddings)
    assert index.classify(photos["green"][:1], threshold=-1)[0] != ["green"]
    with pytest.raises(DataError, match="bleu: is not enrolled; did you mean blue"):
        index.remove("bleu")
    index.add({"green": photos["green"]})
    assert index.classify(photos["green"])[0] == ["green"] * 3
    for name in ("red", "green", "blue"):
        index.remove(name)
    with pytest.raises(DataError, match="the index is empty"):
        index.classify(photos["red"], threshold=0)
    index.add({"red": photos["red"]})
    assert index.classify(photos["red"])[0] == ["red"] * 3


def test_restore(photos, tmp_path):
    """A removed class comes back from the file with its images, unless it was purged."""
    index, file = Index(Colours()), tmp_path / "i.npz"
    index.add({name: photos[name] for name in ("red", "green", "blue")})
    before = index.embeddings[index.labels == 2]
    index.remove("blue")
    index.remove("green")
    index.save(file)
    index = Index.load(Colours(), file)
    assert (index.classes, set(index.removed)) == (["red"], {"blue", "green"})
    index.restore("blue")
    assert (index.classes, index.images, index.labels.tolist()) == (
        ["red", "blue"],
        [*photos["red"], *photos["blue"]],
        [0, 0, 0, 1, 1, 1],
    )
    np.testing.assert_array_equal(index.embeddings[3:], before)
    assert index.classify(photos["blue"])[0] == ["blue"] * 3
    with pytest.raises(DataError, match="blue: is not a removed class; removed: green"):
        index.restore("blue")
    index.add({"green": photos["green"][:1]})
    with pytest.raises(DataError, match=r"0\.png: has been enrolled since green was removed; remove that first"):
        index.restore("green")


def test_the_threshold_depends_on_what_is_enrolled(photos, tmp_path):
    index = Index(Colours())
    index.add({"red": photos["red"], "green": photos["green"]})
    one, two = index.expect(0.01), index.expect(0.5)
    assert (one.threshold, two.threshold) == pytest.approx((0.95, 0.9))
    assert (two.false_accepts, two.false_rejects) == (0.02, 0.25)
    assert index.expect(0.02).threshold == pytest.approx(0.9)
    index.add({"blue": photos["blue"]})
    assert index.expect(0.02).threshold == pytest.approx(0.95)  # three classes: three in a hundred are at 0.95
    index.save(tmp_path / "i.npz")
    stored = Colours()
    stored.calibrate = None  # not needed any more
    again = Index.load(stored, tmp_path / "i.npz")
    assert again.expect(0.01) == index.expect(0.01)
    again._model = Colours()
    again.remove("blue")
    assert again.expect(0.02).threshold == pytest.approx(0.9)


def test_the_rule_is_applied(photos):

    class Plane(Colours):
        def embed(self, images):
            return np.stack([np.asarray(image, np.float32)[:2] for image in images])

    def at(*degrees):
        return [np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))]) for angle in degrees]

    index = Index(Plane())
    index.add({"red": at(1, 60), "green": at(-4, -5, -6)})
    names, cosines, positions = index.nearest(at(0), decide="nearest")
    assert (names, positions.tolist()) == (["red"], [0])
    assert cosines[0] == pytest.approx(np.cos(np.radians(1)), abs=1e-6)
    with pytest.raises(DataError, match="decide='median': is not a decision rule; give one of nearest, background"):
        index.classify(at(0), threshold=0, decide="median")


class Unseen(Colours):
    """Calibrates on colours that are not enrolled."""

    def calibrate(self, sizes):
        rng = np.random.default_rng(0)
        rows = np.repeat(rng.standard_normal((12, 4)), 4, axis=0) + 0.1 * rng.standard_normal((48, 4))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return open_set.calibrate(rows, np.arange(48) // 4, sizes)


def test_the_background_is_part_of_the_index(photos, tmp_path):
    index, path = Index(Unseen()), tmp_path / "i.npz"
    index.add({name: photos[name] for name in ("red", "green")})
    asked = [photos["green"][2], photos["red"][2]]
    assert (index.rule(), index.rule(threshold=0.5), index.rule("nearest")) == ("background", "nearest", "nearest")
    assert index.classify(asked, false_accept_rate=0.3)[0] == ["green", "red"]
    points = index.report((0.05, 0.5))
    assert [point.false_accept_rate for point in points] == [0.05, 0.5]
    for point in points:
        assert point.right + point.wrong + point.unknown == pytest.approx(1)
        assert point.threshold == index.expect(point.false_accept_rate).threshold
        assert 0 <= point.strangers <= point.false_accept_rate
    index.save(path)
    again = Index.load(Colours(), path)  # whose own calibration has no background
    np.testing.assert_array_equal(again.classify(asked)[1], index.classify(asked)[1])
    positions, cosines = index.best(asked, 2)
    rows = Colours().embed(asked)
    for row, found, values in zip(rows, positions, cosines, strict=True):
        per_class = [max(range(3 * c, 3 * c + 3), key=lambda i: row @ index.embeddings[i]) for c in (0, 1)]
        assert found.tolist() == sorted(per_class, key=lambda i: -(row @ index.embeddings[i]))
        np.testing.assert_allclose(values, index.embeddings[found] @ row, atol=1e-6)


def test_failed_enrolment_changes_nothing(photos, tmp_path):
    index = Index(Colours())
    index.add({"red": photos["red"]})
    (tmp_path / "no.png").write_text("no")
    for classes, message in (
        ({"green": []}, "green: give a list of one image or more"),
        ({"green": photos["green"][0]}, "green: give a list of one image or more"),
        ({"unknown": photos["green"]}, "'unknown': cannot be a class name"),
        ({" ": photos["green"]}, "cannot be a class name"),
        ({"green": photos["red"][:1]}, "is already enrolled as red"),
        ({"green": photos["green"], "lime": photos["green"]}, "is already enrolled as green"),
        ({"green": [*photos["green"], tmp_path / "no.png"]}, "no.png: not an image"),
    ):
        with pytest.raises(DataError, match=message):
            index.add(classes)
        assert (index.classes, len(index.images), index.embeddings.shape) == (["red"], 3, (3, 4))
    with pytest.raises(DataError, match="the index is empty"):
        Index(Colours()).classify(photos["red"])
    with pytest.raises(DataError, match=r"threshold=2: must be a cosine"):
        index.classify(photos["red"], threshold=2)


def test_invalid_index_files(photos, tmp_path):
    """Other files, and an index of which any array was changed, added, removed or cut."""
    index, file = Index(Colours()), tmp_path / "index.npz"
    index.add({"red": photos["red"], "green": photos["green"]})
    index.expect()
    index.save(file)
    other = Colours()
    other.fingerprint = "of shapes"
    with pytest.raises(DataError, match="created with another model"):
        Index.load(other, file)
    whole, arrays = file.read_bytes(), dict(np.load(file))
    swapped = {name: array[::-1] for name, array in arrays.items() if array.ndim == 1 and len(set(array.tolist())) > 1}
    assert set(swapped) >= {"classes", "images", "labels"}
    changed = [{**arrays, name: array} for name, array in swapped.items()]
    changed += [{name: array for name, array in arrays.items() if name != left_out} for left_out in arrays]
    changed += [{**arrays, "x": np.zeros(3)}, {"embeddings": np.array([{}])}]
    for content in changed:
        np.savez(file, **content)
        with pytest.raises(DataError, match=r"index\.npz: is .*damaged.*; enroll again"):
            Index.load(Colours(), file)
    np.save(tmp_path / "array", np.zeros(3))
    for content in (whole[:-200], b"text", b"", (tmp_path / "array.npy").read_bytes()):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"index\.npz: is .*damaged"):
            Index.load(Colours(), file)
    with pytest.raises(DataError, match="is missing; enroll again"):
        Index.load(Colours(), tmp_path / "none.npz")


def test_the_command(photos, tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["enroll", "--model=w", f"--index={tmp_path / 'i.npz'}", *map(str, arguments)])
        code = cli.exit_code(lambda: enroll.execute(sys.argv[1:]))
        out, err = capsys.readouterr()
        if code == 0 and "--classify" in arguments and not any("--threshold" in str(a) for a in arguments):
            assert (err.count("\n"), "unknown below" in err) == (1, True)
            expected.append(err)
            return code, out
        assert err.count("\n") == (code == 2)
        return code, out + err

    expected = []
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Colours())
    gallery, later = tmp_path / "gallery", tmp_path / "later"
    later.mkdir()
    (gallery / "blue").rename(later / "blue")
    assert run("--classify", gallery) == (
        2,
        f"error: --index={tmp_path / 'i.npz'}: there is no such file; enroll classes first\n",
    )
    code, text = run(gallery)
    assert (code, "enrolled 9 images of 3 classes; now 9 images of 3 classes" in text) == (0, True)
    code, text = run(later)
    assert (code, "enrolled 3 images of 1 class; now 12 images of 4 classes" in text) == (0, True)
    before = (tmp_path / "i.npz").read_bytes()
    code, text = run(gallery, later)
    assert (code, "i.npz: skipped 12 enrolled images; now 12 images of 4 classes\n" in text) == (
        0,
        True,
    )
    assert (tmp_path / "i.npz").read_bytes() == before
    picture(gallery / "red" / "9.png", "red", 5)
    (gallery / "red" / "notes.txt").write_text("text")
    code, text = run(gallery)
    assert (code, text.splitlines()[0]) == (0, "skipped 1 file other than images, e.g. red/notes.txt")
    assert "enrolled 1 image of 1 class; skipped 9 enrolled images; now 13 images of" in text
    assert run("--list") == (0, "3\tgreen\n3\tgrey\n4\tred\n3\tblue\n")
    new = picture(tmp_path / "new" / "x.png", "blue", 4)
    code, text = run("--classify", new)
    name, cosine, file, nearest = text.rstrip("\n").split("\t")
    assert (code, name, file, Path(nearest).parent.name) == (0, "blue", new, "blue")
    assert float(cosine) > 0.99
    assert expected == [
        "--decide=nearest --false_accept_rate=0.05: unknown below 0.9000; expected: 4.0 % of strangers accepted, "
        "25.0 % of images of enrolled classes rejected (measured on 500 images of 9 unseen classes)\n"
    ]
    assert run("--classify", "--threshold=1.0", new)[1].startswith("unknown\t")
    assert run("--classify", "--decide=nearest", "--false_accept_rate=0.001", new)[1].startswith("blue\t")
    assert "--decide=nearest --false_accept_rate=0.001: unknown below 0.9500" in expected[-1]
    assert expected[-1].endswith("unseen classes, which are too few for this rate)\n")
    complete = (tmp_path / "i.npz").read_bytes()
    code, text = run("--remove=blue", "--remove=red", "--skip_bad")
    assert (code, "removed blue, red; now 6 images of 2 classes" in text) == (0, True)
    assert "2.0 % of strangers accepted" in text
    assert run("--classify", "--threshold=0.9", new)[1].startswith("unknown\t")
    code, text = run("--remove=grey", later)
    assert (code, "removed grey; enrolled 3 images of 1 class; now 6 images of 2 classes" in text) == (0, True)
    code, text = run("--restore=grey", "--remove=blue")
    assert (code, "removed blue; restored grey; now 6 images of 2 classes" in text) == (0, True)
    code, text = run("--restore=blue", "--purge", "--remove=grey")
    assert (code, "removed grey; restored blue; purged red, grey; now 6 images of 2 classes" in text) == (0, True)
    code, text = run("--purge")
    assert (code, "i.npz: purged nothing; now 6 images of 2 classes" in text) == (0, True)
    assert run("--restore=grey") == (2, "error: grey: is not a removed class; there is none; enroll its images again\n")

    def without_embeddings(self, sizes):
        raise DataError("test: contains no embeddings")

    monkeypatch.setattr(Colours, "calibrate", without_embeddings)
    code, text = run("--remove=green")
    assert (code, "warning: no threshold for unknown images: test: contains no embeddings" in text) == (0, True)
    assert run("--classify", new) == (2, "error: test: contains no embeddings\n")
    assert run("--classify", "--threshold=0.9", new)[1].startswith("blue\t")
    (tmp_path / "i.npz").write_bytes(complete)

    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "lime").symlink_to(gallery / "green")
    picture(tmp_path / "twice" / "red" / "r.png", "red")
    (tmp_path / "hollow" / "lilac").mkdir(parents=True)
    for arguments, message in (
        ((), "DIRECTORY|IMAGE: missing"),
        ((gallery, tmp_path / "twice"), "also has a class red"),
        ((tmp_path / "hollow",), "hollow: there is no class folder with images"),
        ((tmp_path / "new",), "new: 1 images, e.g. x.png, are in no class folder"),
        ((tmp_path / "moved",), ".png: is already enrolled as green; give each image once"),
        (("--list", gallery), "--list: cannot be combined with"),
        (("--list", "--purge"), "--list: cannot be combined with images or with changes of the index"),
        ((tmp_path / "none",), "there is no such directory"),
        (("--threshold=0.5", gallery), "--threshold: needs --classify, without --calibrate"),
        (("--remove=wren",), "wren: is not enrolled"),
        (("--remove=red", "--classify", new), "--classify: changes nothing; remove, restore or purge"),
        (("--classify", "--decide=most", new), "--decide: invalid choice: 'most'"),
        (("--classify", "--false_accept_rate=1", new), "false_accept_rate=1: must be above 0 and below 1"),
        (("--classify", "--false_accept_rate=.1", "--threshold=.5", new), "--threshold: not allowed with"),
    ):
        code, text = run(*arguments)
        assert (code, message in text) == (2, True), text


def test_the_class_folders_of_training(tmp_path):
    """Nested folders, folders of splits, hidden and empty folders, files that are not images."""
    for name in (
        "Fruit/Apple/Pink-Lady/1",
        "Fruit/Apple/Pink-Lady/2",
        "Fruit/Pear/1",
        "Dairy/1",
        "Dairy/2",
        "Dairy/Milk/1",
    ):
        picture(tmp_path / "flat" / f"{name}.png", "red")
    (tmp_path / "flat" / "Dairy" / "notes.txt").write_text("text")
    picture(tmp_path / "flat" / ".cache" / "1.png", "red")
    (tmp_path / "flat" / "empty").mkdir()
    shutil.copytree(tmp_path / "flat" / "Fruit", tmp_path / "split" / "train" / "Fruit")
    shutil.copytree(tmp_path / "flat" / "Dairy", tmp_path / "split" / "test" / "Dairy")
    for root in ("flat", "split"):
        found = labelled.class_folders([str(tmp_path / root)])
        entries = folder.find(dict(sources.walk(tmp_path / root)), sources.Options())
        assert set(found) == {"Fruit/Apple/Pink-Lady", "Fruit/Pear", "Dairy", "Dairy/Milk"}
        assert {(name, file) for name, files in found.items() for file in files} == {
            (entry.class_name, entry.file.path) for entry in entries
        }
        assert sum(map(len, found.values())) == len(entries) == 6
    with pytest.raises(DataError, match=r"split: .*flat also has a class Dairy; rename one"):
        labelled.class_folders([str(tmp_path / "flat"), str(tmp_path / "split")])


def test_the_threshold_of_a_run(tmp_path):
    """It is measured with the exported embeddings of the same checkpoint, and with the gallery if there is one."""
    from dml_jax.inference.model import Model

    def export(name, rows, step):
        facts = {"config_hash": None, "step": step}
        embedding_files.write(tmp_path / "embeddings" / name, rows, labels, [f"{i}" for i in range(12)], **facts)

    model, sizes = SimpleNamespace(directory=tmp_path, step=7, _added=(False, (1.0,))), np.array([2, 1])
    rng, labels = np.random.default_rng(0), np.arange(12) % 4
    queries, gallery = (rows / np.linalg.norm(rows, axis=1)[:, None] for rows in rng.standard_normal((2, 12, 5)))
    queries, gallery = queries.astype(np.float32), gallery.astype(np.float32)
    with pytest.raises(DataError, match=r"test: contains no embeddings .*export them with --mode=export"):
        Model.calibrate(model, sizes)
    export("test", queries, 6)
    with pytest.raises(
        CheckpointError, match=r"test: is of another checkpoint than step 7.*--checkpoint=7, or give a t"
    ):
        Model.calibrate(model, sizes)
    export("test", queries, 7)
    alone = Model.calibrate(model, sizes)
    np.testing.assert_array_equal(alone.strangers, open_set.calibrate(queries, labels, sizes).strangers)
    export("gallery", gallery, 7)
    both = Model.calibrate(model, sizes)
    np.testing.assert_array_equal(
        both.strangers, open_set.calibrate(queries, labels, sizes, (gallery, labels)).strangers
    )
    assert not np.array_equal(alone.strangers, both.strangers)


class Reader(Colours):
    """`Colours` with the parts of `Model` that the commands use."""

    step = 3
    finished = True
    config = None

    def read(self, path):
        self.embed([path])
        return np.asarray(Image.open(path))

    def embed_each(self, groups, on_bad=None):
        for group in groups:
            rows = []
            for item in group:
                try:
                    rows += [*self.embed([getattr(item, "content", item)])]
                except DataError as error:
                    if on_bad is None:
                        raise
                    on_bad(error)
                    rows.append(np.full(4, np.nan, np.float32))
            yield np.stack(rows)


def test_commands_at_the_same_time(photos, tmp_path, monkeypatch):
    """The second waits until the first has written; no class is lost."""
    path = tmp_path / "i.npz"
    embedding, go_on, seen = threading.Event(), threading.Event(), []

    class Slow(Colours):
        def embed(self, images):
            seen.append(Index.load(Colours(), path).classes if path.exists() else [])
            embedding.set()
            assert go_on.wait(60)
            return super().embed(images)

    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Slow())
    folders = []
    for name in COLOURS:
        picture(tmp_path / f"of_{name}" / name / "1.png", name)
        folders.append(str(tmp_path / f"of_{name}"))
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(enroll.execute, ["--model=w", f"--index={path}", folders[0]])]
        assert embedding.wait(60)
        tasks += [pool.submit(enroll.execute, ["--model=w", f"--index={path}", folder]) for folder in folders[1:]]
        time.sleep(0.2)  # they could embed their images now, if they did not wait
        go_on.set()
        for task in tasks:
            task.result(60)
    assert [len(classes) for classes in seen] == [0, 1, 2, 3]
    assert sorted(Index.load(Colours(), path).classes) == sorted(COLOURS)
    assert not list(tmp_path.glob(".*"))


def test_unusable_and_ignored_files(photos, tmp_path, monkeypatch, capsys):
    """As `prepare`: hidden files and those of file managers are ignored, --skip_bad lists the others."""
    gallery = tmp_path / "gallery"
    for name in (".hidden.png", "Thumbs.db", "__MACOSX/a.png", ".git/a.png", "bad\x1b.png"):
        (gallery / "red" / name).parent.mkdir(exist_ok=True)
        (gallery / "red" / name).write_text("no")
    model = Reader()
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: model)
    monkeypatch.setattr(configs, "digest", str)

    def run(command, *arguments):
        monkeypatch.setattr(sys, "argv", [command.__name__, "--model=w", *map(str, arguments)])
        return cli.exit_code(lambda: command.execute(sys.argv[1:])), *capsys.readouterr()

    out, index = f"--output={tmp_path / 'out'}", f"--index={tmp_path / 'i.npz'}"
    for command, arguments, listed in ((embed, [out, gallery], "unusable"), (enroll, [index, gallery], "error")):
        code, _, err = run(command, *arguments)
        assert (code, err.splitlines()[0]) == (2, f"{listed}: {gallery}/red/bad\\x1b.png: not an image")
        code, _, err = run(command, "--skip_bad", *arguments)
        assert (code, err) == (0, f"left out: {gallery}/red/bad\\x1b.png: not an image\n")
    ids = json.loads((tmp_path / "out" / "ids.json").read_text())
    assert sorted(ids) == sorted(file for files in photos.values() for file in files)
    assert Index.load(model, tmp_path / "i.npz").images == [str(Path(i).resolve()) for i in sorted(ids)]

    tabbed = picture(tmp_path / "new" / "x\t\x1b[2J.png", "red")
    code, text, _ = run(enroll, index, "--skip_bad", "--classify", tabbed, gallery / "red" / "bad\x1b.png")
    assert (code, text.count("\n"), "\x1b" in text) == (0, 1, False)
    assert text.split("\t")[2] == str(tabbed).replace("\t", r"\t").replace("\x1b", r"\x1b")
    code, _, err = run(embed, f"{out}2", "--skip_bad", gallery / "red" / "bad\x1b.png")
    assert (code, err.splitlines()[-1]) == (2, "error: none of 1 image can be used; the reasons are listed above")


def test_embed_checks_the_query_before_embedding(photos, tmp_path, monkeypatch, capsys):
    def run(query) -> int:
        where = f"--model=w --output={tmp_path / 'out'} --query={query} {tmp_path / 'gallery'}"
        monkeypatch.setattr(sys, "argv", ["embed", *where.split()])
        return cli.exit_code(lambda: embed.execute(sys.argv[1:]))

    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Reader())
    monkeypatch.setattr(configs, "digest", str)
    (tmp_path / "no.png").write_text("no")
    for query, message in (
        (tmp_path / "none.png", "none.png: there is no such file; give one image"),
        (tmp_path / "gallery", "gallery: there is no such file; give one image"),
        (tmp_path / "no.png", "no.png: not an image"),
    ):
        assert run(query) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), message in err) == ("", 1, True), err
        assert not (tmp_path / "out").exists()
    assert run(photos["red"][1]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"cosine 1.0000  {photos['red'][1]}"
    assert (tmp_path / "out" / "neighbors.png").is_file()
