"""The seal of artefacts: whole or absent, and every difference is noticed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dml_jax import seal
from dml_jax.errors import DataError
from dml_jax.seal import Identity
from tests.processes import KILLED, ended, forked

MODEL = Identity({"step": 1, "resize": 256}, "weights", "pixels", [1.0], {"pillow": "13.0.0"})


def write(directory: Path, text: str = "one", **options: object) -> Path:
    with seal.write(directory, "numbers", identity=MODEL, **options) as draft:  # type: ignore[arg-type]
        (draft / "a.txt").write_text(text)
        (draft / "inner").mkdir()
        np.save(draft / "inner" / "b.npy", np.arange(5))
    return directory


def test_what_is_stated(tmp_path: Path) -> None:
    write(tmp_path / "x", parent="digest of the run", about={"count": 5})
    found = seal.read(tmp_path / "x", "numbers", expect=MODEL, parent="digest of the run")
    assert (found.kind, found.about, found.identity) == ("numbers", {"count": 5}, MODEL)
    assert found.files["a.txt"]["size"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert seal.read(write(tmp_path / "y", "two"), "numbers").sha256 != found.sha256


@pytest.mark.parametrize("name", ["a.txt", "inner/b.npy", seal.MANIFEST])
def test_every_flipped_bit_is_noticed(name: str, tmp_path: Path) -> None:
    """Also in the manifest, where white space and escapes have no meaning."""
    directory = write(tmp_path / "x")
    whole = (directory / name).read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(8 * len(whole), min(120, 8 * len(whole)), replace=False).tolist():
        content = bytearray(whole)
        content[position // 8] ^= 1 << position % 8
        (directory / name).write_bytes(bytes(content))
        try:
            found = seal.read(directory, "numbers", expect=MODEL)
        except DataError:
            continue
        assert name == seal.MANIFEST
        assert found.files == seal.digests(directory)


def edit(directory: Path) -> None:
    content = json.loads((directory / seal.MANIFEST).read_text())
    (directory / seal.MANIFEST).write_text(json.dumps(content | {"about": {"count": 6}}))


CHANGED = "has changed since it was written; copy it"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / "a.txt").write_text("on"), rf"a\.txt: {CHANGED}"),
        (lambda d: (d / "a.txt").unlink(), r"a\.txt: is missing; copy it"),
        (lambda d: (d / "c.txt").touch(), r"c\.txt: was added after manifest\.json was written; c"),
        (lambda d: shutil.copy(write(d.parent / "y", "two") / "a.txt", d), rf"a\.txt: {CHANGED}"),
        (edit, rf"manifest\.json: {CHANGED}"),
    ],
)
def test_differences_are_named(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    directory = write(tmp_path / "x", about={"count": 5})
    change(directory)
    with pytest.raises(DataError, match=message):
        seal.read(directory, "numbers", remedy="copy it")


def test_another_origin_is_named(tmp_path: Path) -> None:
    directory = write(tmp_path / "x", parent="run")
    other = Identity({"step": 2, "resize": 256}, "other weights", "pixels")
    for identity, message in (
        (other, r"x: was made by another model \(step is 1, not 2\); again"),
        (Identity(MODEL.description, "other", "pixels"), r"another model \(other weights\)"),
        (
            Identity(MODEL.description, "weights", "other", [], {"pillow": "12.0.0"}),
            r"different pixels: by pillow 13\.0\.0 before, by pillow 12\.0\.0 now",
        ),
    ):
        with pytest.raises(DataError, match=message):
            seal.read(directory, "numbers", expect=identity, remedy="again")
    with pytest.raises(DataError, match="its source has changed since it was made"):
        seal.read(directory, "numbers", parent="other run")
    with pytest.raises(DataError, match="x: contains numbers, not an index; give another"):
        seal.read(directory, "an index")


def test_a_run_names_its_current_parts(tmp_path: Path) -> None:
    write(tmp_path / "part")
    (tmp_path / "log").write_text("line")
    (tmp_path / "foreign").touch()
    seal.close(tmp_path, "run", names=["log"], parts=["part"])
    seal.read(tmp_path, "run", exact=False)
    whole = (tmp_path / "part" / "a.txt").read_text()
    (tmp_path / "part" / "a.txt").write_text("odd")
    with pytest.raises(DataError, match=r"part/a\.txt: has changed"):
        seal.read(tmp_path, "run", exact=False)
    (tmp_path / "part" / "a.txt").write_text(whole)
    write(tmp_path / "part", "two")  # intact, but another one
    for read in (lambda: seal.read(tmp_path, "run", exact=False), lambda: seal.part(tmp_path, "part")):
        with pytest.raises(DataError, match=r"part: does not match manifest\.json"):
            read()


def test_only_artefacts_of_the_kind_are_replaced(tmp_path: Path) -> None:
    write(tmp_path / "x")
    write(tmp_path / "x", "two", entries=["a.txt", "inner"])
    assert (tmp_path / "x" / "a.txt").read_text() == "two"
    (tmp_path / "x" / "thesis.tex").touch()
    with pytest.raises(DataError, match=r"x: contains thesis\.tex; give another directory"):
        write(tmp_path / "x", entries=["a.txt", "inner"])


@pytest.mark.filterwarnings("ignore:.*fork")
def test_killed_at_any_operation(tmp_path: Path) -> None:
    """The old or the new one is there; the next writer removes what was left."""
    write(tmp_path / "x")
    code, moment = KILLED, 0
    while code == KILLED:
        moment += 1
        code = ended(forked(lambda: write(tmp_path / "x", "two"), moment))
        seal.read(tmp_path / "x", "numbers")
        assert (tmp_path / "x" / "a.txt").read_text() in ("one", "two")
        write(tmp_path / "x")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (code, moment > 10) == (0, True)


def test_remains_of_killed_writers(tmp_path: Path) -> None:
    """Before the first rename, between the two, and of an artefact with a similar name."""
    write(tmp_path / "a[1]")
    (tmp_path / ".a[1].abcdefgh.tmp").mkdir()
    (tmp_path / ".a[1].more.abcdefgh.tmp").mkdir()
    (tmp_path / "a[1]").rename(tmp_path / ".a[1].abcdefgh.old")
    assert seal.read(tmp_path / "a[1]", "numbers").identity == MODEL
    write(tmp_path / "a[1]", "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a[1].more.abcdefgh.tmp", "a[1]"]
