"""Sources of images: their files, the words that users have for splits, and the table of a source.

No image is opened here.
"""

import json
import posixpath
import re
import shlex
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dml_jax import seal
from dml_jax.data.files import MISSING, SPLITS, Entry, File, Files, is_hidden, is_image, walk
from dml_jax.errors import ConfigError, DataError, counted, listed, printable
from dml_jax.files import reading
from dml_jax.remote.downloads import Download

UNPACK = {  # suffix of an archive -> how to unpack it
    ".zip": "unzip",
    **dict.fromkeys((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz"), "tar xf"),
    **dict.fromkeys((".rar", ".7z"), "7z x"),
}
PARQUET = ".parquet"
NAME_SPLITS = "--splits=train:valid:test names those for training, validation and test"
NO_SPLITS = "--splits=none takes them for classes"
SHOWN = 10  # images or doubts that a command prints
SPLIT_NAMES = {  # words in the names of folders and columns, and in columns -> split
    **dict.fromkeys(("train", "training", "trn", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "validate"), "validation"),
    **dict.fromkeys(("dev", "devel", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tst", "eval", "evaluation", "holdout"), "test"),
    **dict.fromkeys(("query", "queries", "probe"), "test"),
    **dict.fromkeys(("gallery", "index", "support", "reference", "database"), "gallery"),
}
NEUTRAL = {"", "split", "data", "images", "image", "img", "imgs", "is", "in"}  # may accompany them
OUTPUTS = {  # files that mark what this package has written, with keys that they have -> what it is
    "config.json": ({"config", "data_hash"}, "a run"),
    "study.json": ({"study", "title"}, "a study"),
    seal.MANIFEST: ({"files", "sha256"}, "results"),
}


def find_words(name: str) -> set[str]:
    """The words of a name such as "TrainSet", "testset" or "val_images", in lower case."""
    words = re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+", name)
    return {word.lower().removesuffix("set") for word in words} - NEUTRAL


def _find_split(words: Collection[str]) -> str:
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return "train" if splits == {"train", "validation"} else min(splits) if len(splits) == 1 else ""


class Options(NamedTuple):
    """What the folders and words of a source mean, where the user decides it."""

    test_share: float = 0.5  # share of the classes for test if the source gives no splits
    # "auto" reads names of folders and values of a column as splits; "classes" ignores these splits
    # and divides the classes by `test_share`; "none" reads such folders as classes;
    # "train:valid:test" names the folders or values.
    splits: str = "auto"
    session: str = ""  # see `data.sessions`; "folder": folders in class folders are sessions
    # Which nested folder is the class: the innermost ("leaf"), the outermost ("top") or all of them
    # ("path"); "auto" is "path" unless folders hold mostly the same names.
    classes: str = "auto"

    def parse_splits(self) -> dict[str, str]:
        """The names in `splits` -> split; raises ConfigError for another value."""
        if self.splits in ("auto", "classes", "none"):
            return {}
        names = self.splits.split(":")
        splits = {2: ("train", "test"), 3: SPLITS[:3], 4: SPLITS}.get(len(names), ())
        split_of = dict(zip(names, splits, strict=False))
        if not (names[0] and names[-1]) or len(split_of) < len(names):
            raise ConfigError(
                f"--splits={self.splits}: must be auto, classes, none, or the names of the folders "
                "for training, validation and test, e.g. --splits=train:valid:test or "
                "--splits=train:test"
            )
        return {name: split for name, split in split_of.items() if name}

    def find_split(self, name: str) -> str:
        """The split that one name of a folder or value of a column stands for, or ""."""
        if self.splits == "none" or (names := self.parse_splits()):
            return "" if self.splits == "none" else names.get(name, "")
        words = find_words(name)
        return _find_split(words) if words <= SPLIT_NAMES.keys() else ""

    def find_splits(self, names: Collection[str]) -> dict[str, str]:
        """The split of each name of one level of folders; empty if they are not all splits.

        Words that all names share do not matter. Raises DataError if names of one split differ in
        other words, such as "train" and "train_masks".
        """
        if self.splits == "none" or self.parse_splits():
            splits = {name: self.find_split(name) for name in names}
            return splits if any(splits.values()) else {}
        words = {name: find_words(name) for name in names}
        shared = set.intersection(*words.values()) if words else set()
        splits = {name: _find_split(words[name] - shared) for name in names}
        if not all(splits.values()) or len({*splits.values()}) < 2:
            return {}
        first = dict[str, str]()
        for name in sorted(names):
            other = first.setdefault(splits[name], name)
            if words[name] - SPLIT_NAMES.keys() != words[other] - SPLIT_NAMES.keys():
                raise DataError(
                    f"{other!r} and {name!r} both look like the split {splits[name]!r}; "
                    f"{NAME_SPLITS}, {NO_SPLITS}"
                )
        return splits


AUTO = Options()


class Table(NamedTuple):
    """The images of a source, a row each."""

    rows: Sequence[Entry]
    doubts: Sequence[str] = ()  # sentences for the user
    columns: str = ""  # what the columns of a file are, in words
    undecided: int = 0  # rows that had no split, so that `Options.test_share` has decided
    refused: Sequence[str] = ()  # data sets that the files look like, and why they are not read so


class Recipe(NamedTuple):
    """How to read a data set as its authors distribute it."""

    read: Callable[[Files, Options], Table]  # DataError if the files are not this data set
    # Suffixes of the files other than images that it reads.
    reads: tuple[str, ...] = (".csv", ".json", ".mat", ".txt")
    in_place: bool = False  # whether a folder can be used without preparation
    # split -> (images, classes) of the complete data set; None if they are not fixed.
    counts: Mapping[str, tuple[int, int]] | None = None
    home: str = ""  # web page of the data set
    citation: str = ""  # paper to cite
    downloads: Sequence[Download] = ()  # the archives, where the owners publish them
    terms: str = ""  # licence of the downloads, or why there are none
    # Whether the files look like this data set, judged by their names alone.
    matches: Callable[[Files], bool] = lambda files: False


class Survey(NamedTuple):
    """The files of a source without hidden folders and what this package has written."""

    files: Files
    doubts: list[str]  # sentences about what is left out


def survey(files: Iterable[tuple[str, File]]) -> Survey:
    """Leaves out hidden folders and what this package has written."""
    everything = dict(sorted(files))
    visible = {path: file for path, file in everything.items() if not is_hidden(path)}
    outputs: dict[str, str] = {}  # folders and files -> what they are

    def is_output(path: str) -> bool:
        return any(path == output or path.startswith(f"{output}/") for output in outputs)

    for path, file in visible.items():
        folder, _, name = path.rpartition("/")
        if name == "catalogue.csv" and f"{path[:-3]}html" in visible:
            outputs[path] = "a catalogue"
        elif name in OUTPUTS and not is_output(path):
            keys, what = OUTPUTS[name]
            with suppress(DataError, ValueError, TypeError, RecursionError):
                if keys <= set(json.loads(file.read())):
                    # In the folder of the user's images, a run writes images to these two only.
                    tops = {path.split("/")[0] for path in visible if "/" in path}
                    inside = sorted(tops & {"analysis", "figures"})
                    outputs |= dict.fromkeys([folder] if folder else inside, what)
    rest = {path: file for path, file in visible.items() if not is_output(path)}
    doubts = list[str]()
    if outputs:
        examples = listed([f"{name} ({what})" for name, what in outputs.items()], 3)
        doubts.append(f"left out, because dml_jax has written them: {examples}")
    if hidden := [path for path in everything if is_image(path) and is_hidden(path, files=False)]:
        number = counted(len(hidden), "image")
        doubts.append(f"left out {number} in hidden folders, e.g. {hidden[0]!r}")
    doubts += [f"images in it are not used: {line}" for line in packed_files(rest)]
    return Survey(rest, doubts)


def list_skipped(files: Collection[str], reads: Collection[str] = ()) -> list[str]:
    """A sentence about files other than images and those of the suffixes `reads`, if any."""
    others = (posixpath.splitext(path)[1].lower() for path in files if not is_image(path))
    counts = Counter(suffix for suffix in others if suffix not in reads)
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    kinds = listed([f"{suffix or 'no suffix'}: {count:,}" for suffix, count in ranked], 8)
    number = counted(counts.total(), "file")
    return [f"skipped {number} other than images ({kinds})"] if kinds else []


def packed_files(files: Collection[str]) -> list[str]:
    """What to do with archives and Parquet files, whose images are not read: a sentence for each
    kind."""
    by_kind = defaultdict[str, list[str]](list)
    for path in files:
        by_kind[packing(path)].append(path)
    sentences = list[str]()
    for kind, (first, *more) in by_kind.items():
        what = f"an archive; unpack it first: {UNPACK.get(kind)} {shlex.quote(first)}"
        if kind == PARQUET:
            what = "a Parquet file; write its images to a folder first, as the page on data shows"
        if kind:
            sentences.append(f"{first}{f' (and {len(more)} more)' if more else ''} is {what}")
    return sentences


def packing(path: str) -> str:
    """The suffix of an archive or a Parquet file; "" for another file."""
    endings = (*UNPACK, PARQUET)
    return next((ending for ending in endings if path.lower().endswith(ending)), "")


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks an archive, which must not lead out of the folder; DataError if it is damaged."""
    with reading(archive, "download or copy it again"):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)
        else:
            with tarfile.open(archive) as tarred:
                tarred.extractall(folder, filter="data")
    return folder


def leave_out(
    reasons: Sequence[tuple[str, str]],
    count: int,
    say: Callable[[str], object],
    *,
    strict: bool = False,
    remedy: str = "leave --strict out",
) -> None:
    """Names the images that cannot be used and are left out.

    Args:
      reasons: name and reason of each such image.
      count: number of images of the source.
      say: gets the lines; missing images share one.
      strict: whether such images are an error, and all are named.
      remedy: with `strict`, what else the user can do than fix them.

    Raises:
      DataError: there are such images, with `strict`, or all images are.
    """
    missing = [name for name, reason in reasons if reason == MISSING]
    one_by_one = reasons if len(missing) < 2 else [pair for pair in reasons if pair[1] != MISSING]
    what, number = (
        "unusable" if strict else "left out",
        f"{len(reasons):,} of {counted(count, 'image')}",
    )
    lines = [f"{what}: {name}: {reason}" for name, reason in one_by_one]
    if len(missing) > 1:
        images = counted(len(missing), "image")
        lines.append(f"{what}: {images} that are missing, e.g. {', '.join(missing[:3])}")
    for line in lines if strict else lines[:SHOWN]:
        say(printable(line))
    if reasons and (strict or len(reasons) == count):
        remedies = f"fix them, or {remedy}" if strict else "fix them"
        raise DataError(f"{number} cannot be used (listed above); {remedies}")
    if reasons:
        say(f"left out: {number}")


def list_files(sources: Sequence[Path], option: str = "--source") -> Survey:
    """The files of all sources, which are folders and tables, by their relative path."""
    files: dict[str, File] = {}
    for source in sources:
        if source.is_dir():
            content = dict(walk(source))
        elif source.is_file() and source.suffix.lower() == ".csv":
            rest = (pair for pair in walk(source.parent) if not pair[0].lower().endswith(".csv"))
            content = {source.name: File(source), **dict(rest)}
        else:
            reasons = packed_files([str(source)] if source.is_file() else [])
            what = reasons[0] if reasons else "must be an existing folder or .csv file"
            raise DataError(f"{option}={source}: {what}")
        if shared := set(files) & set(content):
            raise DataError(
                f"--source={source}: {min(shared)!r} is also in another source; give each file once"
            )
        files |= content
    return survey(files.items())
