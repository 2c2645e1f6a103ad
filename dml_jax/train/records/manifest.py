"""The manifest of a checkpoint: which run it belongs to, and size and digest of each of its files.

It is written last, so that a directory without one is incomplete. It holds a digest of itself, so that damage to the
record of the run is not mistaken for another run.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dml_jax import buckets
from dml_jax.errors import CheckpointError
from dml_jax.files import is_url, read_json, sha256, write_json

NAME = "manifest.json"
FORMER = "sha256.json"  # of earlier versions: a digest by file, and nothing about the run
REMEDY = "the checkpoint is incomplete"


@dataclass
class _Run:
    config: dict[str, Any] = field(default_factory=dict)


@dataclass
class _File:
    size: int
    sha256: str | None = None
    crc32c: str | None = None  # of an object in a bucket


@dataclass
class _Content:
    run: _Run
    files: dict[str, _File]
    sha256: str


def write(checkpoint: Path, run: Mapping[str, Any]) -> None:
    """Marks a checkpoint of the run with this `workdir.identity` as complete."""
    content = {"run": dict(run), "files": digests(checkpoint)}
    write_json(checkpoint / NAME, content | {"sha256": _digest(content)})


def complete(directory: Path) -> list[Path]:
    """The complete checkpoints in a directory, by step."""
    found = {path.parent for name in (NAME, FORMER) for path in directory.glob(f"*/{name}")}
    return sorted((path for path in found if path.name.isdigit()), key=lambda path: int(path.name))


def newest(directory: Path) -> tuple[Path, dict[str, Any] | None] | None:
    """The newest checkpoint in a directory whose manifest can be read, and its run, see `run_of`; None without one."""
    for checkpoint in reversed(complete(directory)):
        with suppress(CheckpointError):  # what to do about damage is said when a checkpoint is restored
            return checkpoint, run_of(checkpoint)
    return None


def run_of(checkpoint: Path) -> dict[str, Any] | None:
    """The run that a checkpoint belongs to; None if an earlier version has written it."""
    return _read(checkpoint)[0]


def check(checkpoint: Path) -> None:
    """Raises CheckpointError unless every file of a checkpoint is unchanged since it was written."""
    expected, found = _read(checkpoint)[1], digests(checkpoint)
    intact = {name for name in expected.keys() & found.keys() if _agree(expected[name], found[name])}
    if damaged := sorted((expected.keys() | found.keys()) - intact):
        raise CheckpointError(f"{checkpoint}: the checkpoint is corrupt, {damaged[0]} has changed since it was written")


def _agree(expected: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """A checkpoint that was copied into a bucket or out of it is known by its sizes alone."""
    return all(expected[key] == found[key] for key in expected.keys() & found.keys())


def digests(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file below a directory by relative path, without its manifest.

    In a bucket, the CRC-32C takes the place of the SHA-256, and no file is read.
    """
    if is_url(directory):
        return {name: about for name, about in buckets.objects(directory).items() if name not in (NAME, FORMER)}
    return {
        str(path.relative_to(directory)): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in (NAME, FORMER)
    }


def _read(checkpoint: Path) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """(the run, what is known of each file)."""
    if (checkpoint / FORMER).exists():
        former = read_json(checkpoint / FORMER, dict[str, str], REMEDY, CheckpointError)
        return None, {name: {"sha256": digest} for name, digest in former.items()}
    content = read_json(checkpoint / NAME, _Content, REMEDY, CheckpointError)
    if content.pop("sha256") != _digest(content):
        raise CheckpointError(f"{checkpoint / NAME}: has changed since it was written; {REMEDY}")
    return content["run"], content["files"]


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
