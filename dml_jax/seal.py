"""Sealed artefacts: directories that are written once and never updated.

    with seal.write(directory, "index", identity=identity) as draft:
        ...                       # files in `draft`
    seal.read(directory, "index", expect=identity)

A sealed directory appears complete or not at all. Its `manifest.json`, written last, contains the
size and SHA-256 of every file, the digest of the artefact that it was made from, and the identity
of the embedding function. `read` is the only way to open it: it compares sizes, digests, parent and
identity, and raises an error that names the difference. A run is a directory of sealed directories;
its manifest names the current ones (`parts`), and is replaced by a rename when one is added.

A digest detects damage and mistakes. It is not a signature: whoever can edit a file can also edit
the manifest.

In a bucket, objects appear whole, but directories cannot be renamed. So files are written in place,
and only sizes are compared, because the bucket has its own checksums.
"""

import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pydantic

from dml_jax.errors import DataError, UserError
from dml_jax.files import is_url, locked, name_file, reading, sha256, write_json

MANIFEST = "manifest.json"
REMEDY = "restore it from a copy, or create it again"
SHOWN = 4  # differences listed in a message


@dataclass(frozen=True)
class Identity:
    """The identity of an embedding function.

    Attributes:
      description: readable settings of each step from image file to embedding, by key.
      variables: SHA-256 of all parameters and of the model state.
      pixels: SHA-256 of the probe images as they enter the network.
      row: embedding of the first probe image, D numbers; devices may round it differently.
      decoders: versions of the libraries that decoded the probe images, by name.
    """

    description: dict[str, Any]
    variables: str
    pixels: str = ""
    row: list[float] = field(default_factory=list, compare=False)
    decoders: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def sha256(self) -> str:
        """Digest of the function, excluding its row."""
        return _digest([self.description, self.variables, self.pixels])

    def differences(self, other: "Identity") -> str:
        """The keys in which two functions differ, with values; empty if they are equal."""
        own, expected = self.description, other.description
        keys = [key for key in sorted(own | expected) if own.get(key) != expected.get(key)]
        listed = [f"{key} is {own.get(key)!r}, not {expected.get(key)!r}" for key in keys[:SHOWN]]
        if len(keys) > SHOWN:
            listed.append(f"and {len(keys) - SHOWN} more")
        if not keys and self.variables != other.variables:
            listed.append("other weights")
        if not keys and self.pixels != other.pixels:
            before, after = (_listed(each.decoders) for each in (self, other))
            listed.append(
                f"images are decoded to different pixels: by {before} before, by {after} now"
            )
        return ", ".join(listed)


@dataclass(frozen=True)
class Seal:
    """The content of a manifest.

    Attributes:
      kind: type of the artefact, such as "embeddings".
      files: name -> "size" and, except in a bucket, "sha256".
      parts: current sealed directories inside -> digest of their manifest.
      parent: digest of the artefact that it was made from, or "".
      identity: the embedding function, if there is one.
      about: further entries.
    """

    kind: str
    files: dict[str, dict[str, Any]]
    parts: dict[str, str] = field(default_factory=dict)
    parent: str = ""
    identity: Identity | None = None
    about: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""

    @property
    def digest(self) -> str:
        """Digest of the artefact: its content, parent and identity."""
        return _digest({key: value for key, value in asdict(self).items() if key != "sha256"})


@contextmanager
def write(
    directory: Path,
    kind: str,
    *,
    parent: str = "",
    identity: Identity | Callable[[Path], Identity] | None = None,
    about: Mapping[str, Any] | None = None,
    entries: Iterable[str] | None = None,
) -> Iterator[Path]:
    """Context with an empty directory that becomes `directory`, sealed, unless an exception occurs.

    Args:
      directory: new, or an artefact to replace. A lock excludes other writers.
      kind, parent, about: see `Seal`. `about` is read after the context.
      identity: see `Seal`; or a function that computes it from the finished directory.
      entries: names that a replaced directory may contain; DataError for anything else.
    """
    if is_url(directory):
        yield directory
        seal = Seal(kind, _sizes(directory), {}, parent, None, dict(about or {}))
        _close(
            directory,
            replace(seal, identity=identity(directory) if callable(identity) else identity),
        )
        return
    with replacing(directory) as draft:
        _check_replaceable(directory, entries)
        yield draft
        seal = Seal(kind, digests(draft), {}, parent, None, dict(about or {}))
        if callable(identity):
            _close(draft, seal)  # so that the draft can be read
            identity = identity(draft)
        _close(draft, replace(seal, identity=identity))


@contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Context with an empty directory that becomes `directory` unless an exception occurs; locks
    `directory` meanwhile. `write` also seals it."""
    directory = directory.resolve()  # "." has no name
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory), name_file(directory):
        _finish(directory)
        draft = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.tmp")
        draft.mkdir()
        try:
            yield draft
            for path in (draft, *draft.rglob("*")):
                _sync(path)
            if directory.exists():
                directory.rename(draft.with_suffix(".old"))
            draft.rename(directory)
            _sync(directory.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        finally:
            _finish(directory)


def read(
    directory: Path,
    kind: str,
    *,
    expect: Identity | None = None,
    parent: str | None = None,
    names: Iterable[str] | None = None,
    exact: bool = True,
    error: type[UserError] = DataError,
    remedy: str = REMEDY,
) -> Seal:
    """Verifies sizes, digests, parent and identity of a directory; returns its manifest.

    Args:
      kind: required kind of the artefact; "" for any.
      expect: required embedding function.
      parent: required digest of the artefact that it was made from.
      names: files to compare; by default all, including those of its parts.
      exact: if all files are compared, raises an error for files that the manifest does not name.
      error: type of the exception.
      remedy: end of the message.
    """
    manifest = read_manifest(directory, kind, error=error, remedy=remedy)
    for name in manifest.files if names is None else names:
        problem = _difference(directory / name, manifest.files.get(name))
        if problem:
            raise error(f"{directory / name}: {problem}; {remedy}")
    if names is None and exact and not is_url(directory):
        unlisted = sorted(_names(directory) - manifest.files.keys())
        inside = tuple(f"{part}/" for part in manifest.parts)
        for name in unlisted:
            if not name.startswith(inside):
                what = f"was added after {MANIFEST} was written"
                raise error(f"{directory / name}: {what}; {remedy}")
    for part, digest in manifest.parts.items() if names is None else ():
        inner_manifest = read(directory / part, "", error=error, remedy=remedy)
        if inner_manifest.sha256 != digest:
            raise error(f"{directory / part}: does not match {MANIFEST}; {remedy}")
    if parent is not None and manifest.parent != parent:
        raise error(f"{directory}: its source has changed since it was made; {remedy}")
    if expect is not None:
        if manifest.identity is None:
            raise error(f"{directory}: does not record which model made it; {remedy}")
        check_identity(manifest.identity, expect, str(directory), error=error, remedy=remedy)
    return manifest


def check_identity(
    stored: Identity, expect: Identity, what: str, *, error: type[UserError], remedy: str
) -> None:
    """Raises `error` unless `what`, made by the function `stored`, was made by `expect`."""
    if differences := stored.differences(expect):
        raise error(f"{what}: was made by another model ({differences}); {remedy}")


def read_manifest(
    directory: Path, kind: str = "", *, error: type[UserError] = DataError, remedy: str = REMEDY
) -> Seal:
    """Reads the manifest of a directory; verifies only the manifest itself."""
    _restore(directory)
    with reading(directory / MANIFEST, remedy, error):
        manifest = pydantic.TypeAdapter(Seal).validate_json((directory / MANIFEST).read_bytes())
    if manifest.sha256 != manifest.digest:
        raise error(f"{directory / MANIFEST}: has changed since it was written; {remedy}")
    if kind and manifest.kind != kind:
        raise error(f"{directory}: contains {manifest.kind}, not {kind}; give another directory")
    return manifest


def file(
    directory: Path, name: str, *, error: type[UserError] = DataError, remedy: str = REMEDY
) -> Path:
    """The path of a file in a directory, verified if the directory is sealed (an unfinished run is
    not)."""
    if sealed(directory):
        read(directory, "", names=[name], error=error, remedy=remedy)
    return directory / name


def part(
    directory: Path, name: str, *, error: type[UserError] = DataError, remedy: str = REMEDY
) -> Path:
    """The path of a sealed directory inside another, which must name it if that is sealed, too."""
    if sealed(directory):
        current = read_manifest(directory, error=error, remedy=remedy).parts.get(name)
        if current != read_manifest(directory / name, error=error, remedy=remedy).sha256:
            raise error(f"{directory / name}: does not match {MANIFEST}; {remedy}")
    return directory / name


def sealed(directory: Path) -> bool:
    """Whether a directory has a manifest, which shows that writing it was finished."""
    _restore(directory)
    return (directory / MANIFEST).exists()


def close(
    directory: Path,
    kind: str,
    *,
    names: Iterable[str] | None = None,
    known: Mapping[str, dict[str, Any]] | None = None,
    parts: Iterable[str] = (),
    identity: Identity | None = None,
    about: Mapping[str, Any] | None = None,
) -> Seal:
    """Seals files in place: a checkpoint, which Orbax writes, or the current state of a run.

    Args:
      names: the files to seal; by default all.
      known: the files with their digests, instead of `names`.
      parts: names of sealed directories inside.
    """
    if known is not None:
        files = dict(known)
    else:
        files = _sizes(directory) if is_url(directory) else digests(directory, names)
    digest_of = {part: read_manifest(directory / part).sha256 for part in parts}
    seal = Seal(kind, files, digest_of, "", identity, dict(about or {}))
    if not is_url(directory):  # the manifest must not reach the disk before the files
        paths = [directory / name for name in files]
        for path in (*paths, *{path.parent for path in paths}):
            _sync(path)
    _close(directory, seal)
    if not is_url(directory):
        _sync(directory)
    return seal


def digests(directory: Path, names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files by name; by default, of all files in a directory."""
    files = {}
    for name in sorted(_names(directory) if names is None else names):
        with reading(directory / name):
            size = (directory / name).stat().st_size
            files[name] = {"size": size, "sha256": sha256(directory / name)}
    return files


def _close(directory: Path, seal: Seal) -> None:
    write_json(directory / MANIFEST, {**asdict(seal), "sha256": seal.digest})


def _difference(path: Path, entry: Mapping[str, Any] | None) -> str:
    """How a file differs from its entry in the manifest; empty if it does not."""
    if entry is None:
        return f"is not in {MANIFEST}"
    if not path.is_file():
        return "is missing"
    stat: Any = path.stat()  # etils uses other names
    size = stat.length if is_url(path) else stat.st_size
    if size != entry["size"] or ("sha256" in entry and sha256(path) != entry["sha256"]):
        return "has changed since it was written"
    return ""


def _names(directory: Path) -> set[str]:
    """The names of files in a directory, without drafts and locks."""
    paths = (path for path in directory.rglob("*") if path.is_file() and path.name[0] != ".")
    return {path.relative_to(directory).as_posix() for path in paths} - {MANIFEST}


def _sizes(directory: Path) -> dict[str, dict[str, Any]]:
    import fsspec

    root = str(directory).removeprefix("gs:/").strip("/")
    listed = fsspec.filesystem("gs", use_listings_cache=False).find(root, detail=True)
    sizes = {path[len(root) + 1 :]: {"size": about["size"]} for path, about in listed.items()}
    return {name: size for name, size in sizes.items() if name not in ("", MANIFEST)}


def _check_replaceable(directory: Path, entries: Iterable[str] | None) -> None:
    """Raises DataError if a directory contains anything other than `entries`."""
    if entries is None or not directory.exists():
        return
    allowed = {MANIFEST, *entries}
    if foreign := sorted({path.name for path in directory.iterdir()} - allowed):
        raise DataError(f"{directory}: contains {foreign[0]}; give another directory")


def _sync(path: Path) -> None:
    """Flushes a file or the entries of a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _restore(directory: Path) -> None:
    """Completes or undoes the renames of a killed writer."""
    if not is_url(directory) and _beside(directory, "old"):
        with locked(directory):
            _finish(directory)


def _finish(directory: Path) -> None:
    """Like `_restore`, with the lock held."""
    for remains in _beside(directory, "tmp"):
        shutil.rmtree(remains, ignore_errors=True)
    for old in _beside(directory, "old"):
        if directory.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(directory)


def _beside(directory: Path, kind: str) -> list[Path]:
    return list(directory.parent.glob(f".{glob.escape(directory.name)}.????????.{kind}"))


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
