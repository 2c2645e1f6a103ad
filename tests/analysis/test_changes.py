"""Changes of files: applied, killed between any two steps, repeated, and reversed."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from dml_jax.analysis import changes
from dml_jax.analysis.catalogue import Button, Catalogue
from dml_jax.analysis.changes import Change
from dml_jax.analysis.examined_images import Images
from dml_jax.errors import UserError
from tests.processes import KILLED, ended, forked


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve files in three classes, whose names are equal in each, and one is not UTF-8."""
    for label in ("=ash", "elm", "oak"):
        for name in ("1.jpg", "2.jpg", "a,\n3.jpg", "caf\udce9.jpg"):
            path = tmp_path / "photos" / label / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.fsencode(f"{label} {name}"))
    return tmp_path / "photos"


@pytest.fixture
def log(folder: Path) -> Path:
    """Clicks: a move and its undoing, a merge, moves there and back, and a removal."""
    found = digests(folder)
    names = [f"./{name}" for name in sorted(found)]
    nothing = np.zeros(len(names))
    images = Images(
        folder, names, [found[name[2:]] for name in names], np.zeros((12, 2), np.float32),
        nothing[:, None], nothing, nothing, nothing, nothing, nothing - 1,
    )  # fmt: skip
    labels = [name.split("/")[1] for name in names]
    file, made = folder.with_name("changes.csv"), Catalogue(images, labels)

    def click(*key: object) -> None:
        nonlocal made
        rows = made.undone(*key) if len(key) == 1 else made.changed(Button("", *key))  # type: ignore[arg-type]
        changes.append(file, rows)
        made = Catalogue(images, labels, changes.read(file))

    click("move", [0], "oak")
    click(1)
    click("merge", [0, 1, 2, 3], "elm")
    click("move", [1], "oak")
    click("move", [2], "oak")
    click("move", [2], "=ash")
    click("delete", [7])
    assert made.labels == ["elm", "oak", "=ash", "elm", *["elm"] * 4, *["oak"] * 4]
    assert np.flatnonzero(made.gone).tolist() == [7]
    with file.open("a") as torn:
        torn.write('9,move,./elm/1.jpg,00,"./o')
    return file


EXPECTED = {
    "elm/1 (2).jpg": "=ash/1.jpg",
    "oak/2 (2).jpg": "=ash/2.jpg",
    "elm/caf\udce9 (2).jpg": "=ash/caf\udce9.jpg",
    ".trash/elm/caf\udce9.jpg": "elm/caf\udce9.jpg",
}


@pytest.mark.filterwarnings("ignore:.*fork")
def test_killed_at_every_step_repeated_and_reversed(folder: Path, log: Path) -> None:
    before = digests(folder)
    after = before | {new: before[old] for new, old in EXPECTED.items()}
    after = {name: digest for name, digest in after.items() if name not in EXPECTED.values()}
    for reverse, result in ((False, after), (True, before)):
        code, step = KILLED, 0
        while code == KILLED:
            step += 1
            code = ended(forked(lambda reverse=reverse: changes.apply(folder, log, reverse=reverse), step))
            assert set(digests(folder).values()) == set(before.values())  # nothing is ever lost
        assert (code, step > 3) == (0, True)
        assert digests(folder) == result
        assert changes.apply(folder, log, reverse=reverse) == 0
        assert changes.applied(folder, changes.read(log)) == (0 if reverse else len(EXPECTED))


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("1.jpg")


def test_nothing_moves_if_one_file_cannot(folder: Path, log: Path) -> None:
    before = digests(folder)
    for spoil, words in (
        (lambda: (folder / "=ash/2.jpg").write_text("new"), "has changed since"),
        (lambda: (folder / "oak/2 (2).jpg").write_text(""), "is there already; rename it"),
        (lambda: (folder / "=ash/2.jpg").unlink(), "is missing; put it back"),
        (lambda: link(folder / "=ash/2.jpg"), "is not a file"),
    ):
        spoil()
        spoilt = digests(folder)
        with pytest.raises(UserError, match=words):
            changes.apply(folder, log)
        assert digests(folder) == spoilt
        (folder / "=ash/2.jpg").unlink(missing_ok=True)
        (folder / "=ash/2.jpg").write_bytes(b"=ash 2.jpg")
        (folder / "oak/2 (2).jpg").unlink(missing_ok=True)
        assert digests(folder) == before


def test_file_systems_without_links(folder: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert changes.apply(folder, log) == len(EXPECTED)
    assert set(EXPECTED) <= set(digests(folder))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((1, "move", "./a", "0", "./../b"), r"\./\.\./b: must be a path in the folder"),
        ((1, "delete", "/etc/a", "0", "./b"), "/etc/a: must be a path in the folder"),
        ((1, "sell", "./a", "0", "./b"), "sell: must be one of move, merge, delete, keep, undo"),
        ((1, "undo", "", "", "x"), "x: must be the number of a click"),
    ],
)
def test_rows_of_others(row: tuple[object, ...], words: str, tmp_path: Path) -> None:
    changes.append(tmp_path / "c.csv", [Change(*row)])  # type: ignore[arg-type]
    with pytest.raises(UserError, match=words):
        changes.read(tmp_path / "c.csv")
