"""Custom image folders with one subfolder per class.

    photos/oak/1.jpg              the classes are split into training and test classes,

    photos/train/oak/1.jpg        or folders named like train, test (or query), and optionally
    photos/test/elm/7.jpg         validation and gallery give the split, at any level

The name of a class is the path of its folder, without folders that all classes are in and those
that give the split, whose names may be in any usual spelling. Folders inside a folder that holds
images belong to its class. A folder is a split only if all images are in such folders at its level;
otherwise it is an ordinary class, as long as that is certain.
"""

from collections.abc import Mapping
from typing import NamedTuple

from dml_jax.data import sessions
from dml_jax.data.files import IMAGE_SUFFIXES, Entry, Files, is_image
from dml_jax.data.prepare.sources import Options, Recipe
from dml_jax.errors import DataError, counted

Folders = tuple[str, ...]  # the names of the folders that an image is in, or some of them
DECIDE = (
    "--splits=train:valid:test names the folders for training, validation and test, "
    "--splits=classes divides the classes instead, --splits=none takes them for classes"
)


class _Layout(NamedTuple):
    """How a folder is read."""

    classes: Mapping[Folders, Folders]  # the folders of an image -> its class
    splits: Mapping[Folders, str]  # the folders -> the split; empty to divide the classes
    doubts: list[str]


def _folders(files: Files) -> dict[str, Folders]:
    """The folders of each image."""
    return {path: tuple(path.split("/")[:-1]) for path in files if is_image(path)}


def find(files: Files, options: Options) -> list[Entry]:
    """Takes every file with the suffix of an image as one; its class is the path of its folder."""
    folders = _folders(files)
    if not folders:
        raise DataError(
            "there is no class folder with images; put the images of each class into a folder, "
            f"with names that end in {', '.join(IMAGE_SUFFIXES)}"
        )
    at_top = () in folders.values()
    layout = None if at_top else _read(folders, options)
    class_of = layout.classes if layout else {parts: parts for parts in folders.values()}
    stray = [path for path, parts in folders.items() if not class_of[parts]]
    if stray or layout is None:
        first, folder = stray[0], stray[0].rpartition("/")[0].rpartition("/")[2]
        verb = "is" if len(stray) == 1 else "are"
        remedy = f", or give --splits=none if {folder!r} is a class" if folder else ""
        raise DataError(
            f"{counted(len(stray), 'image')}, e.g. {first}, {verb} in no class folder: put the "
            f"images of each class into a folder{remedy}"
        )
    return [
        Entry(path, files[path], "/".join(class_of[parts]), layout.splits[parts])
        for path, parts in folders.items()
    ]


def doubts(files: Files, options: Options) -> list[str]:
    """What the reading of the folders had to guess."""
    return _read(_folders(files), options).doubts


def _read(folders: Mapping[str, Folders], options: Options) -> _Layout:
    held = set(folders.values())  # the folders that hold images
    split_words = {parts: tuple(map(options.split_of, parts)) for parts in held}
    found: list[str] = []
    level = _split_level(split_words)
    splits = dict.fromkeys(held, "")
    inner = {parts: parts for parts in held}
    if level is not None:
        inner = {parts: parts[:level] + parts[level + 1 :] for parts in held}
        splits = {parts: words[level] for parts, words in split_words.items()}
        if len(set(splits.values())) == 1:
            name = min(parts[level] for parts in held)
            why = f"all images are in the folder {name!r}, so it gives no split"
            found.append(f"{why}: its classes are divided")
            splits = dict.fromkeys(held, "")
    elif options.named():
        what = "there are no folders of these names"
        if any(any(words) for words in split_words.values()):
            outside = min(parts for parts, words in split_words.items() if not any(words))
            what = f"the folder {'/'.join(outside)!r} is in none of them; name it, too"
        raise DataError(f"--splits={options.splits}: {what}")
    elif options.splits == "classes":
        inner = _without_splits(split_words)
    elif options.splits == "auto":
        found += _check_mixed(split_words)
    classes, nested = _outermost(inner, options.session)
    shared = _shared(set(classes.values()))
    without_shared = {parts: label[shared:] for parts, label in classes.items()}
    return _Layout(without_shared, splits, [*found, *nested])


def _split_level(split_words: Mapping[Folders, Folders]) -> int | None:
    """The level of the folders that give the split of every image, if there is one."""
    for level in range(min(map(len, split_words), default=0)):
        if all(words[level] for words in split_words.values()):
            alone = len({parts[level] for parts in split_words}) == 1
            # A single folder of images is a class.
            return None if alone and any(len(parts) == 1 for parts in split_words) else level
    return None


def _without_splits(split_words: Mapping[Folders, Folders]) -> dict[Folders, Folders]:
    return {
        parts: tuple(part for part, split in zip(parts, words, strict=True) if not split) or parts
        for parts, words in split_words.items()
    }


def _check_mixed(split_words: Mapping[Folders, Folders]) -> list[str]:
    """Refuses folders that look like splits, beside others, unless they are certainly classes."""
    looks = {parts: words for parts, words in split_words.items() if any(words)}
    owner: dict[Folders, Folders] = {}
    for parts, bare in sorted(_without_splits(split_words).items()):
        other = owner.setdefault(bare, parts)
        if other != parts and (parts in looks or other in looks):
            raise DataError(
                f"the class {'/'.join(bare)!r} is in {'/'.join(other)!r} and in "
                f"{'/'.join(parts)!r}, beside folders that give no split; {DECIDE}"
            )
    # The splits of folders that hold other folders.
    if {"train", "test"} <= {split for words in looks.values() for split in words[:-1]}:
        parts = min(parts for parts, words in looks.items() if any(words[:-1]))
        raise DataError(
            f"folders such as {parts[0]!r} look like splits, but others beside them do not; "
            f"{DECIDE}"
        )
    pairs = (pair for parts, words in looks.items() for pair in zip(parts, words, strict=True))
    if not (names := sorted({part for part, split in pairs if split})):
        return []
    return [f"the folders {', '.join(map(repr, names[:4]))} count as classes, not as splits"]


def _outermost(
    folders: Mapping[Folders, Folders], session: str
) -> tuple[dict[Folders, Folders], list[str]]:
    """The class of each folder, the outermost one around it with images, and doubts about that."""
    held = set(folders.values()) - {()}
    outer = {
        parts: next((parts[:i] for i in range(1, len(parts)) if parts[:i] in held), parts)
        for parts in held
    }
    inside = sorted(parts for parts in held if outer[parts] != parts)
    if session == sessions.FOLDER:
        # The class is the folder that holds folders of images.
        around = {outer[parts] for parts in inside}
        classes = {p: outer[p] if outer[p] != p or p in around else p[:-1] or p for p in held}
        return {given: classes.get(parts, ()) for given, parts in folders.items()}, []
    found = []
    if inside:
        first = inside[0]
        verb = "counts" if len(inside) == 1 else "count"
        found.append(
            f"{counted(len(inside), 'folder')} inside class folders, e.g. {'/'.join(first)!r}, "
            f"{verb} as part of that class, here {'/'.join(outer[first])!r}"
        )
    labels = set(outer.values())
    shared = _shared(labels)
    if deep := sorted(label for label in labels if len(label) > shared + 1):
        above = counted(len({label[:-1] for label in deep}), "folder")
        verb = "is a folder" if len(deep) == 1 else "are folders"
        found.append(
            f"{counted(len(deep), 'class')}, e.g. {'/'.join(deep[0][shared:])!r}, {verb} in "
            f"{above}; if such folders are parts of one class, such as days, give session=folder"
        )
    return {given: outer.get(parts, ()) for given, parts in folders.items()}, found


def _shared(classes: set[Folders]) -> int:
    """The number of folders that all classes are in."""
    deepest = max(0, min(map(len, classes), default=0) - 1)
    levels = range(deepest)
    return next((i for i in levels if len({parts[i] for parts in classes}) > 1), deepest)


def recognised(files: Files) -> bool:
    return any(map(is_image, files))


RECIPE = Recipe(find, doubts=doubts, reads=(), in_place=True, recognised=recognised)
