"""One integrity for every artefact: a directory that is written once and never updated.

    with seal.write(directory, "index", identity=identity) as draft:
        ...                       # files in `draft`
    seal.read(directory, "index", expect=identity)

A sealed directory appears complete or not at all. Its `manifest.json`, written last, has the size
and SHA-256 of every file, the digest of the artefact that it was made from, and the identity of the
embedding function. `read` is the only way in: it compares sizes, digests, parent and identity, and
ends in one sentence about what differs. A run is a directory of sealed directories; its manifest
names the current ones (`parts`) and is replaced by a rename whenever one is added.

A digest detects damage and mistakes. It is no signature: whoever can edit a file can also edit the
manifest.

In a bucket, objects appear whole, but directories cannot be renamed. There the files are written in
place, and only sizes are compared, as the bucket has checksums of its own.
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
REMEDY = "restore it from a copy, or make it again"
SHOWN = 4  # differences in a message


@dataclass(frozen=True)
class Identity:
    """What an embedding function is.

    Attributes:
      description: readable facts about each step from image file to row, by key.
      variables: SHA-256 of all parameters and of the model state.
      pixels: SHA-256 of the probe images as they enter the network.
      row: embedding of the first probe image, D numbers; other devices round it differently.
      decoders: the versions of the libraries that read the probe images, by name.
    """

    description: dict[str, Any]
    variables: str
    pixels: str = ""
    row: list[float] = field(default_factory=list, compare=False)
    decoders: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def sha256(self) -> str:
        """Digest of the function, without its row."""
        return _digest([self.description, self.variables, self.pixels])

    def differences(self, other: "Identity") -> str:
        """The keys in which two functions differ, with their values; empty if none does."""
        ours, theirs = self.description, other.description
        keys = [key for key in sorted(ours | theirs) if ours.get(key) != theirs.get(key)]
        shown = [f"{key} is {ours.get(key)!r}, not {theirs.get(key)!r}" for key in keys[:SHOWN]]
        if len(keys) > SHOWN:
            shown.append(f"and {len(keys) - SHOWN} more")
        if not keys and self.variables != other.variables:
            shown.append("other weights")
        if not keys and self.pixels != other.pixels:
            then, now = (_listed(each.decoders) for each in (self, other))
            shown.append(f"images become other pixels: read by {then} then, by {now} now")
        return ", ".join(shown)


@dataclass(frozen=True)
class Seal:
    """The content of a manifest.

    Attributes:
      kind: what the directory is, such as "embeddings".
      files: name -> "size" and, except in a bucket, "sha256".
      parts: sealed directories in it that are current -> the digest of their manifest.
      parent: digest of the artefact that it was made from, or "".
      identity: of the embedding function, if one was involved.
      about: further facts.
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
        """Identifies the artefact: its content, parent and identity."""
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
    """Context with an empty directory that becomes `directory`, sealed, if no exception occurs.

    Args:
      directory: new, or an artefact to replace. A lock keeps other writers out.
      kind, parent, about: see `Seal`. `about` is read after the context.
      identity: see `Seal`; or a function that computes it from the finished directory.
      entries: the names that a directory to be replaced may hold; anything else is a DataError.
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
    """Context with an empty directory that becomes `directory`, which is locked meanwhile, if no
    exception occurs; `write` also seals it."""
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
    """The seal of a directory, after comparing sizes, digests, parent and identity.

    Args:
      kind: of the artefact that must be there.
      expect: the embedding function that must have made it.
      parent: the digest of the artefact that it must have been made from.
      names: the files to compare; by default all, and those of its parts.
      exact: whether a file that the manifest does not name is an error, if all are compared.
      error: the type of the exception.
      remedy: ends the message.
    """
    found = stated(directory, kind, error=error, remedy=remedy)
    for name in found.files if names is None else names:
        problem = _difference(directory / name, found.files.get(name))
        if problem:
            raise error(f"{directory / name}: {problem}; {remedy}")
    if names is None and exact and not is_url(directory):
        others = sorted(_names(directory) - found.files.keys())
        inside = tuple(f"{part}/" for part in found.parts)
        for name in others:
            if not name.startswith(inside):
                what = f"was added after {MANIFEST} was written"
                raise error(f"{directory / name}: {what}; {remedy}")
    for part, digest in found.parts.items() if names is None else ():
        inner = read(directory / part, "", error=error, remedy=remedy)
        if inner.sha256 != digest:
            raise error(f"{directory / part}: is not the one that {MANIFEST} names; {remedy}")
    if parent is not None and found.parent != parent:
        raise error(f"{directory}: was made from something else than is there now; {remedy}")
    if expect is not None:
        if found.identity is None:
            raise error(f"{directory}: does not say which model made it; {remedy}")
        check_identity(found.identity, expect, str(directory), error=error, remedy=remedy)
    return found


def check_identity(
    stored: Identity, expect: Identity, what: str, *, error: type[UserError], remedy: str
) -> None:
    """Raises `error` unless `what`, made by `stored`, was made by the function `expect`."""
    if differences := stored.differences(expect):
        raise error(f"{what}: was made by another model ({differences}); {remedy}")


def stated(
    directory: Path, kind: str = "", *, error: type[UserError] = DataError, remedy: str = REMEDY
) -> Seal:
    """What the manifest of a directory states, of which only the manifest itself is checked."""
    _restore(directory)
    with reading(directory / MANIFEST, remedy, error):
        found = pydantic.TypeAdapter(Seal).validate_json((directory / MANIFEST).read_bytes())
    if found.sha256 != found.digest:
        raise error(f"{directory / MANIFEST}: has changed since it was written; {remedy}")
    if kind and found.kind != kind:
        raise error(f"{directory}: holds {found.kind}, not {kind}; give another directory")
    return found


def file(
    directory: Path, name: str, *, error: type[UserError] = DataError, remedy: str = REMEDY
) -> Path:
    """The path of a file in a directory, after comparing it if the directory is sealed: a run is
    not before it has finished."""
    if sealed(directory):
        read(directory, "", names=[name], error=error, remedy=remedy)
    return directory / name


def part(
    directory: Path, name: str, *, error: type[UserError] = DataError, remedy: str = REMEDY
) -> Path:
    """The path of a sealed directory in another one, which must be current if that is sealed."""
    if sealed(directory):
        current = stated(directory, error=error, remedy=remedy).parts.get(name)
        if current != stated(directory / name, error=error, remedy=remedy).sha256:
            raise error(f"{directory / name}: is not the one that {MANIFEST} names; {remedy}")
    return directory / name


def sealed(directory: Path) -> bool:
    """Whether a directory has a manifest, so that whoever wrote it had finished."""
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
    """Seals files where they are: a checkpoint, which Orbax writes, or the current state of a run.

    Args:
      names: the files that belong to it; by default all.
      known: these files with their digests, instead of `names`.
      parts: names of sealed directories that belong to it.
    """
    if known is not None:
        files = dict(known)
    else:
        files = _sizes(directory) if is_url(directory) else digests(directory, names)
    digest_of = {part: stated(directory / part).sha256 for part in parts}
    seal = Seal(kind, files, digest_of, "", identity, dict(about or {}))
    if not is_url(directory):  # the manifest follows once everything else is on disk
        paths = [directory / name for name in files]
        for path in (*paths, *{path.parent for path in paths}):
            _sync(path)
    _close(directory, seal)
    if not is_url(directory):
        _sync(directory)
    return seal


def digests(directory: Path, names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files, by default of all in a directory, by name."""
    found = {}
    for name in sorted(_names(directory) if names is None else names):
        with reading(directory / name):
            size = (directory / name).stat().st_size
            found[name] = {"size": size, "sha256": sha256(directory / name)}
    return found


def _close(directory: Path, seal: Seal) -> None:
    write_json(directory / MANIFEST, {**asdict(seal), "sha256": seal.digest})


def _difference(path: Path, known: Mapping[str, Any] | None) -> str:
    """How a file differs from what the manifest states; empty if it does not."""
    if known is None:
        return f"is not in {MANIFEST}"
    if not path.is_file():
        return "is missing"
    stat: Any = path.stat()  # that of etils has other names
    size = stat.length if is_url(path) else stat.st_size
    if size != known["size"] or ("sha256" in known and sha256(path) != known["sha256"]):
        return "has changed since it was written"
    return ""


def _names(directory: Path) -> set[str]:
    """The files of a directory, without drafts and locks."""
    paths = (path for path in directory.rglob("*") if path.is_file() and path.name[0] != ".")
    return {path.relative_to(directory).as_posix() for path in paths} - {MANIFEST}


def _sizes(directory: Path) -> dict[str, dict[str, Any]]:
    import fsspec

    root = str(directory).removeprefix("gs:/").strip("/")
    listed = fsspec.filesystem("gs", use_listings_cache=False).find(root, detail=True)
    sizes = {path[len(root) + 1 :]: {"size": about["size"]} for path, about in listed.items()}
    return {name: size for name, size in sizes.items() if name not in ("", MANIFEST)}


def _check_replaceable(directory: Path, entries: Iterable[str] | None) -> None:
    """DataError if a directory holds something that an artefact of its kind would not."""
    if entries is None or not directory.exists():
        return
    known = {MANIFEST, *entries}
    if foreign := sorted({path.name for path in directory.iterdir()} - known):
        raise DataError(f"{directory}: contains {foreign[0]}; give another directory")


def _sync(path: Path) -> None:
    """Waits until a file or the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _restore(directory: Path) -> None:
    """Completes or undoes what a writer left that was killed between its renames."""
    if not is_url(directory) and _beside(directory, "old"):
        with locked(directory):
            _finish(directory)


def _finish(directory: Path) -> None:
    """Completes or undoes what a killed writer left: the lock is held."""
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
