"""`manifest.json` of a directory: size and SHA-256 of its files, and their run or model.

It is written last, so that a directory without one is incomplete; readers check their files. It
contains a digest of itself, so that damage to it is not mistaken for other files. For a checkpoint
in a bucket it has sizes only, because the bucket and orbax have checksums.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dml_jax.errors import DataError, UserError
from dml_jax.files import is_url, read_json, reading, sha256, write_json

NAME = "manifest.json"
REMEDY = "restore it from a copy, or write it again"


@dataclass
class _Content:
    files: dict[str, dict[str, Any]]  # name -> "size" and, except in buckets, "sha256"
    sha256: str
    run: dict[str, Any] = field(default_factory=dict)  # for a checkpoint: `workdir.identity`


def write(
    directory: Path,
    about: Mapping[str, Any],
    names: Iterable[str] | None = None,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Writes and returns the manifest of the files with these relative names, by default of all.

    `known` are digests of further files, which are not read.
    """
    content = {**about, "files": {**known, **digests(directory, names)}}
    content["sha256"] = _digest(content)
    write_json(directory / NAME, content)
    return content


def read(
    directory: Path, error: type[UserError] = DataError, remedy: str = REMEDY
) -> dict[str, Any]:
    """The manifest of a directory; raises `error` if it is missing or damaged."""
    content: dict[str, Any] = read_json(directory / NAME, _Content, remedy, error)
    if content["sha256"] != _digest(content):
        raise error(f"{directory / NAME}: has changed since it was written; {remedy}")
    return content


def check(
    directory: Path,
    names: Iterable[str] | None = None,
    error: type[UserError] = DataError,
    remedy: str = REMEDY,
) -> dict[str, Any]:
    """The manifest; raises `error` if one of these files, or any in it, is missing or changed."""
    content = read(directory, error, remedy)
    names = content["files"] if names is None else names
    expected = {name: content["files"].get(name) for name in names}
    found = digests(directory, expected, error, remedy)
    for name, known in expected.items():
        if known is None or found.get(name) != known:
            what = "has changed since it was written" if name in found else "is missing"
            what = f"is not in {NAME}" if known is None else what
            raise error(f"{directory / name}: {what}; {remedy}")
    return content


def part(
    directory: Path, name: str, error: type[UserError] = DataError, remedy: str = REMEDY
) -> Path:
    """The path of a file in a directory; raises `error` if the directory has a manifest (a run that
    has not finished has none) and the file is not as the manifest states."""
    if (directory / NAME).exists():
        check(directory, [name], error, remedy)
    return directory / name


def digests(
    directory: Path,
    names: Iterable[str] | None = None,
    error: type[UserError] = DataError,
    remedy: str = REMEDY,
) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of those files that exist."""
    if is_url(directory):
        import fsspec

        root = str(directory).removeprefix("gs://")
        listed = fsspec.filesystem("gs", use_listings_cache=False).find(root, detail=True)
        sizes = {path[len(root) + 1 :]: {"size": about["size"]} for path, about in listed.items()}
        return {k: size for k, size in sizes.items() if k and k[-1] != "/" and k != NAME}
    if names is None:
        paths = [path for path in directory.rglob("*") if path != directory / NAME]
        names = sorted(path.relative_to(directory).as_posix() for path in paths)
    found = {}
    for name in names:
        if (path := directory / name).is_file():
            with reading(path, remedy, error):
                found[name] = {"size": path.stat().st_size, "sha256": sha256(path)}
    return found


def _digest(content: Mapping[str, Any]) -> str:
    signed = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()
