"""From archives or folders to a prepared data set, in steps that a killed run takes up again."""

import csv
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from dml_jax.data import prepared
from dml_jax.data.prepare import archives, duplicates, inspect, writer
from dml_jax.data.prepare.inspect import Facts
from dml_jax.data.prepare.sources import SPLITS, Entry, File, Files, Options, Recipe, clutter, mixed, walk
from dml_jax.errors import ConfigError, DataError

UNFINISHED = ".unfinished"  # folder of what an interrupted run left
ALIKE = "near_duplicates.csv"


class Request(NamedTuple):
    """What is to be prepared.

    Attributes:
      name: of the data set.
      sources: archives and folders.
      output: directory to make.
      options: how classes are split.
      short_side, pixels: see `packing.stored`.
      skip_bad: leave out what cannot be used instead of stopping.
      subset: accept other counts than those of the whole data set.
      threads: that decode.
    """

    name: str
    sources: tuple[Path, ...]
    output: Path
    options: Options = Options()
    short_side: int = 0
    pixels: bool = False
    skip_bad: bool = False
    subset: bool = False
    threads: int = os.cpu_count() or 1

    def identity(self) -> dict[str, Any]:
        """What decides the result."""
        sources = [str(path.resolve()) for path in self.sources]
        decisive = {
            "short_side": self.short_side,
            "pixels": self.pixels,
            "skip_bad": self.skip_bad,
            "subset": self.subset,
        }
        return {"name": self.name, "sources": sources, **self.options._asdict(), **decisive}


class Console(Protocol):
    """Where a person sees what is going on."""

    def say(self, message: str) -> None: ...
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, done: int) -> None: ...


def prepare(request: Request, recipe: Recipe, console: Console) -> dict[str, Any]:
    """Prepares a data set; finished ones are left alone, interrupted ones continued.

    Returns:
      the content of the marker.

    Raises:
      ConfigError: the output is in use for something else.
      DataError: the sources are not the data set, or images cannot be used; all of them have been listed on the screen.
    """
    done = prepared.read_marker(request.output)
    if done is not None:
        differing = [key for key, value in request.identity().items() if done["request"].get(key) != value]
        if differing:
            raise ConfigError(
                f"--output={request.output}: was prepared with another {' and '.join(differing)}; choose another output"
            )
        console.say(f"{request.output} is prepared already")
        return done
    room = _room(request, console)
    try:
        return _prepare(request, recipe, console, room)
    except (ConfigError, DataError):  # to be mended by the user: nothing half-made stays
        shutil.rmtree(room)
        if not any(request.output.iterdir()):
            request.output.rmdir()
        raise


def _room(request: Request, console: Console) -> Path:
    """The folder for unfinished work, with what an interrupted run of the same request left in it."""
    output, room = request.output, request.output / UNFINISHED
    note = room / "request.json"
    try:
        if note.is_file():
            for path in output.iterdir():
                if path != room:
                    _remove(path)
            _remove(room / "data")
            if json.loads(note.read_text() or "null") == request.identity():
                console.say("continuing an interrupted preparation")
                return room
            _remove(room)
        elif output.exists() and any(output.iterdir()):
            raise ConfigError(f"--output={output}: is not empty and holds no unfinished preparation")
        room.mkdir(parents=True)
        _write(note, json.dumps(request.identity()))
    except OSError as error:
        raise ConfigError(f"--output={output}: cannot be written, {error.strerror}") from error
    return room


def _prepare(request: Request, recipe: Recipe, console: Console, room: Path) -> dict[str, Any]:
    files = gather(request, recipe.nested, console, room)
    where = " ".join(f"--source={source}" for source in request.sources)
    try:
        entries = recipe.find(files, request.options)
        mixed(entries)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    if recipe.counts and not request.subset and (wrong := inspect.miscounted(entries, recipe.counts)):
        raise DataError(f"{'; '.join(wrong)}: --subset accepts a part of {request.name}")
    _enough(entries, where)
    console.begin("checking images", len(entries))
    facts, reasons = inspect.examine_all(entries, request.threads, console.advance)
    if recipe.counts is None:
        reasons |= inspect.misplaced(entries, facts)
    for i in sorted(reasons):
        console.say(_shown(f"{entries[i].id}: {reasons[i]}"))
    if reasons and not request.skip_bad:
        raise DataError(
            f"{len(reasons)} of {len(entries)} images cannot be used, all are listed above; mend them, or leave "
            "them out with --skip_bad"
        )
    good = [i for i in range(len(entries)) if i not in reasons]
    kept = [entries[i] for i in good]
    _enough(kept, where)
    console.begin("packing images", len(kept))
    about = {
        "name": request.name,
        "home": recipe.home,
        "citation": recipe.citation,
        "description": f"{request.name}, split by class for deep metric learning",
    }
    data = room / "data"
    data.mkdir()
    content = writer.write(
        data,
        kept,
        about,
        short_side=request.short_side,
        pixels=request.pixels,
        threads=request.threads,
        each=console.advance,
    )
    alike = _alike(kept, [facts[i] for i in good])
    _report(data / ALIKE, alike, console)
    content |= {
        "request": request.identity(),
        "skipped": [[entries[i].id, reasons[i]] for i in sorted(reasons)],
        "near_duplicates": len(alike),
    }
    for path in sorted(data.iterdir()):
        path.replace(request.output / path.name)
    prepared.mark(request.output, content)
    shutil.rmtree(room)
    return content


def _enough(entries: Sequence[Entry], where: str) -> None:
    """Raises DataError unless there are two classes to train on and two to test on."""
    classes = {split: sorted({e.label for e in entries if e.split == split}) for split in ("train", "test")}
    if min(map(len, classes.values())) < 2:
        every = sorted({entry.label for entry in entries})
        named = f" ({', '.join(map(repr, every[:3]))}{', …' if len(every) > 3 else ''})" if every else ""
        raise DataError(
            f"{where}: {len(entries)} images of {len(every)} class{'' if len(every) == 1 else 'es'}{named}: that "
            f"leaves {len(classes['train'])} to train on and {len(classes['test'])} to test on, at least 2 of each are "
            "needed"
        )


def gather(request: Request, nested: bool, console: Console, room: Path) -> Files:
    """All files of the sources by their path in them, archives unpacked.

    Raises:
      DataError: a source is missing, hostile or damaged, or two hold the same path.
    """
    files: dict[str, File] = {}
    for i, source in enumerate(request.sources):
        if source.is_dir():
            if request.output.resolve().is_relative_to(source.resolve()):
                raise ConfigError(f"--output={request.output}: lies inside the source {source}")
            found = dict(walk(source))
        elif source.is_file() and archives.is_archive(source.name):
            found = _unpacked(source, room / f"source-{i}", console)
        elif source.is_file() and source.suffix.lower() == ".csv":
            others = (pair for pair in walk(source.parent) if not pair[0].lower().endswith(".csv"))
            found = {source.name: File(source), **dict(others)}
        else:
            raise DataError(f"--source={source}: is no folder, no .csv file and none of {', '.join(archives.ENDINGS)}")
        if nested:
            found |= _nested(found, room / f"source-{i}", console)
        if shared := set(files) & set(found):
            raise DataError(f"--source={source}: {min(shared)!r} is in another source too")
        files |= found
    return dict(sorted(files.items()))


def _nested(found: Files, blob: Path, console: Console) -> dict[str, File]:
    """The files of the archives among the files, one level deep, as if they lay where the archives lie."""
    files: dict[str, File] = {}
    for j, path in enumerate(sorted(path for path in found if archives.is_archive(path))):
        archive = found[path]
        if archive.size >= 0:
            ending = next(ending for ending in archives.ENDINGS if path.lower().endswith(ending))
            archive = File(_copy(archive, blob.with_name(f"{blob.name}-{j}{ending}")))
        parent = path.rpartition("/")[0]
        inner = _unpacked(archive.path, blob.with_name(f"{blob.name}-{j}"), console)
        files |= {f"{parent}/{name}" if parent else name: file for name, file in inner.items()}
    return files


def _copy(file: File, target: Path) -> Path:
    """Takes a file out of the one that holds all members of an archive."""
    if not target.exists() or target.stat().st_size != file.size:
        with file.path.open("rb") as source, target.open("wb") as copy:
            source.seek(file.offset)
            left = file.size
            while chunk := source.read(min(left, archives.CHUNK)):
                left -= copy.write(chunk)
    return target


def _unpacked(archive: Path, blob: Path, console: Console) -> dict[str, File]:
    """Unpacks an archive unless an interrupted run has done so."""
    facts, note = archive.stat(), blob.with_name(f"{blob.name}.json")
    state = [facts.st_size, facts.st_mtime_ns]
    known = json.loads(note.read_text()) if note.is_file() else None
    if known is None or known["archive"] != state:
        console.say(f"unpacking {archive}")
        known = {"archive": state, "members": archives.unpack(archive, blob)}
        _write(note, json.dumps(known))
    return {name: File(blob, offset, size) for name, offset, size in known["members"] if not clutter(name)}


def _write(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def _alike(entries: Sequence[Entry], facts: Sequence[Facts]) -> list[tuple[Entry, Entry]]:
    """Near-duplicates between training and test or gallery."""
    rows = {split: [i for i, entry in enumerate(entries) if entry.split == split] for split in SPLITS}
    trained, tested = rows["train"], rows["test"] + rows["gallery"]
    prints = np.stack([fact.fingerprint for fact in facts])
    found = duplicates.pairs(prints[trained], prints[tested])
    return [(entries[trained[i]], entries[tested[j]]) for i, j in found]


def _report(path: Path, alike: Sequence[tuple[Entry, Entry]], console: Console) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("train", "test"), *((a.id, b.id) for a, b in alike)])
    if alike:
        console.say(f"pairs of a training and a test image that look alike: {len(alike)}, see {ALIKE}; for example")
        for a, b in alike[:3]:
            console.say(_shown(f"  {a.id} and {b.id}"))


def _shown(text: str) -> str:
    """Text as one line that any terminal can show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def summary(content: Mapping[str, Any]) -> list[str]:
    """Lines that tell what was prepared."""
    splits = [f"{name}: {of['images']} images of {of['classes']} classes" for name, of in content["splits"].items()]
    skipped = [f"{len(content['skipped'])} images were left out"] if content["skipped"] else []
    return [*splits, *skipped, f"sha256 {content['sha256']}"]
