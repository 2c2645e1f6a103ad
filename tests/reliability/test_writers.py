"""Every writer of files that are read again: killed at every operation on files, and two of them at once."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dml_jax import files, seal, table
from dml_jax.train.records import workdir
from tests.processes import KILLED, ended, forked
from tests.tiny_model import identity

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork")]


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
    versions = {*map(int, found.embeddings.ravel()), *found.labels.tolist()}
    (version,) = versions | {int(name.partition("-")[0]) for name in found.ids}
    assert found.seal.identity == identity(version)
    return version


def write_run(path: Path, version: int) -> None:
    """As an export of a finished run."""
    with files.locked(path / "embeddings"), workdir.updated(path, "embeddings/"):
        write_embeddings(path / "embeddings" / "test", version)


WRITERS = {
    "embeddings": Writer(write_embeddings, read_embeddings),
    "file": Writer(files.write_json, lambda path: int(path.read_text())),
    "run": Writer(write_run, lambda path: read_embeddings(path / "embeddings" / "test")),
}


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
    writer, points, code = WRITERS[name], 0, KILLED
    writer.write(path, 1)
    while code == KILLED:
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
