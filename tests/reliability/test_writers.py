"""Every writer of files that are read again: killed at every operation on files, and two of them at
once."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dml_jax import files, seal, table
from dml_jax.train.records import workdir
from tests.tiny_model import identity

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork")]
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "shutil.rmtree")


class Writer(NamedTuple):
    """Writes a version to a path, and reads which version is there."""

    write: Callable[[Path, int], object]
    read: Callable[[Path], int]


def write_embeddings(path: Path, version: int) -> None:
    rows = np.full((3 + version, 2), version, np.float32)
    names = [f"{version}-{i}" for i in range(len(rows))]
    table.write(path, rows, np.full(len(rows), version), names, identity=identity(version))


def read_embeddings(path: Path) -> int:
    found = table.read(path)
    (version,) = {*found.embeddings.ravel(), *found.labels, *(int(name.partition("-")[0]) for name in found.ids)}
    assert found.seal.identity == identity(version)
    return int(version)


def write_run(path: Path, version: int) -> None:
    """As an export of a finished run."""
    with files.locked(path / "embeddings"), workdir.updated(path, "embeddings/"):
        write_embeddings(path / "embeddings" / "test", version)


def write_number(path: Path, version: int) -> None:
    files.write_json(path, version)


WRITERS = {
    "embeddings": Writer(write_embeddings, read_embeddings),
    "file": Writer(write_number, lambda path: int(path.read_text())),
    "run": Writer(write_run, lambda path: read_embeddings(path / "embeddings" / "test")),
}


def forked(body: Callable[[], object], killed_at: int = 0) -> int:
    """The process number of a copy of this process that executes the body, and is killed at an
    operation on files."""
    if process := os.fork():
        return process
    done = 0

    def count(event: str, arguments: object) -> None:
        nonlocal done
        if event in OPERATIONS:
            done += 1
            if done == killed_at:
                os._exit(9)

    sys.addaudithook(count)
    try:
        body()
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.fixture
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    if request.node.callspec.params["name"] == "run":
        (tmp_path / "path").mkdir()
        (tmp_path / "path" / "config.json").write_text("{}")
        with seal.write(tmp_path / "path" / "model", "model"):
            pass
        workdir.finish(tmp_path / "path", "model", identity(1))
    return tmp_path / "path"


@pytest.mark.parametrize("name", WRITERS)
def test_killed_at_every_operation(name: str, path: Path) -> None:
    """The old or the new version is there, and the next writer removes what the killed one left."""
    writer, points, code = WRITERS[name], 0, 9
    writer.write(path, 1)
    while code == 9:
        points += 1
        code = ended(forked(lambda: writer.write(path, 2), points))
        assert writer.read(path) in (1, 2), points
        writer.write(path, 1)
        if name != "file":  # whose drafts are small
            assert not list(path.parent.glob(".path.*")), points
    assert code == 0
    assert points > 3
    if name == "run":
        seal.read(path, "run", exact=False)


@pytest.mark.parametrize("name", WRITERS)
def test_two_at_once(name: str, path: Path) -> None:
    writer = WRITERS[name]
    for _ in range(20):
        both = [forked(lambda version=version: writer.write(path, version)) for version in (1, 2)]
        assert [ended(process) for process in both] == [0, 0]
        assert writer.read(path) in (1, 2)
        if name == "run":
            seal.read(path, "run", exact=False)
