"""What pixels say about the reading of a source: folders alike, classes that mix, near-copies."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.data import look
from dml_jax.data.files import Entry, File
from dml_jax.data.split import Split, unread
from dml_jax.errors import DataError

CLASSES = ("ash", "elm", "fir", "oak", "yew")


def entries(*names: str, split: str = "") -> list[Entry]:
    """Six images in each folder."""
    paths = [f"{name}/{i}.jpg" for name in names for i in range(6)]
    return [Entry(p, File(Path(p)), p.rpartition("/")[0], split) for p in paths]


def model(vector: Callable[[Path], np.ndarray], bad: Sequence[str] = ()) -> Any:
    """Embeds a path as a vector [8] with a little noise; those of `bad` names are unusable."""
    rng = np.random.default_rng(0)

    def embed_each(groups: list[list[Path]], on_bad: Callable[[DataError], object]) -> Any:
        for paths in groups:
            rows = np.stack([vector(path) for path in paths]) + 0.2 * rng.normal(size=(len(paths), 8))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            for i, path in enumerate(paths):
                if path.name in bad:
                    on_bad(DataError(f"{path}: damaged"))
                    rows[i] = np.nan
            yield rows.astype(np.float32)

    return SimpleNamespace(embed_each=embed_each)


def about(part: int) -> Callable[[Path], np.ndarray]:
    """A vector of the name of one folder."""

    def vector(path: Path) -> np.ndarray:
        return np.eye(8)[sorted({*CLASSES, "a", "b"}).index(path.parts[part])]

    return vector


@pytest.mark.parametrize(("part", "kind"), [(1, "leaf"), (0, "top")])
def test_which_folders_are_alike(part: int, kind: str) -> None:
    names = [f"{s}/{c}" if kind == "leaf" else f"{c}/{s}" for s in "ab" for c in CLASSES]
    lines = look.look(model(about(part)), entries(*names), ())
    assert lines[0] == "looked at 60 images of 10 folders"
    which, other = ("last", "first") if kind == "leaf" else ("first", "last")
    hints = {line.split()[-1]: line for line in lines if "speaks" in line}
    assert list(hints) == [f"--classes={kind}"]
    assert f"the same {which} name: 100 % of 10 (by chance 11 %)" in hints[f"--classes={kind}"]
    assert any(f"the same {other} name: 0 % of 10 (by chance 44 %)" in line for line in lines)


def test_classes_that_mix_and_near_copies() -> None:
    def vector(path: Path) -> np.ndarray:
        name = {"elm": "ash"}.get(path.parts[0], path.parts[0])
        row = np.eye(8)[sorted(CLASSES).index(name)]
        return 100 * np.eye(8)[7] if path.name == "5.jpg" and name in ("oak", "yew") else row

    read = [e._replace(split="test" if e.class_name > "m" else "train") for e in entries(*CLASSES)]
    read = [e._replace(split="train") if e.class_name == "oak" else e for e in read]
    lines = look.look(model(vector, bad=("4.jpg",)), entries(*CLASSES), read)
    assert lines[0] == "looked at 25 images of 5 folders, 5 more cannot be used"
    (mixed,) = (line for line in lines if " mix: " in line)
    assert re.match(r"the images of 'ash' and 'elm' mix: \d+ % .*\(by chance 20 %\)", mixed)
    (copies,) = (line for line in lines if "near-copies" in line)
    assert re.search(r"'(oak|yew)/5\.jpg' and '(oak|yew)/5\.jpg', cosine 1\.000$", copies)
    alone = look.look(model(about(0)), entries(*CLASSES), entries(*CLASSES, split="train"))
    assert alone[1:] == ["no classes mix, and no image is nearly one of another split"]
    with pytest.raises(DataError, match="fewer than two folders hold usable images"):
        look.look(model(about(0)), entries("ash"), ())


def test_at_most_200_images_of_whole_names() -> None:
    names = [f"{s}/{i}" for s in "ab" for i in range(500)]
    few = look.sample(entries(*names))
    assert len(few) == look.MOST
    folders = {entry.class_name for entry in few}
    assert {name[2:] for name in folders if name[0] == "a"} == {name[2:] for name in folders if name[0] == "b"}
    assert len(look.sample(entries(*"abcde"))) == 30


def test_one_line_in_training() -> None:
    """Of embedded splits: classes that mix, as of all lines; nothing of classes that are apart."""
    labels, classes = np.repeat(np.arange(5), 12), list(CLASSES)
    split = Split(labels, [f"{i}.jpg" for i in range(60)], unread, classes)
    rng = np.random.default_rng(0)
    apart = np.eye(8)[labels] + 0.05 * rng.normal(size=(60, 8))
    one = np.eye(8)[np.maximum(labels, 1)] + 0.05 * rng.normal(size=(60, 8))
    line = look.summarise({"test": split}, {"test": 7 * apart.astype(np.float32)})
    assert line == f"look at 60 images of test: {look.NOTHING}"
    line = look.summarise({"test": split}, {"test": one.astype(np.float32)})
    assert line.startswith("look at 60 images of test: the images of 'ash' and 'elm' mix: ")
    assert "more" not in line
    both = {"test": split, "gallery": split}
    line = look.summarise(both, dict.fromkeys(both, apart.astype(np.float32)))
    assert "test and gallery: near-copies in two splits: 'test/" in line
    assert line.endswith(" (and 3 more lines of dml-jax inspect --look)")
