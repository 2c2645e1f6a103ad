"""Custom image folders with one subfolder per class.

    photos/oak/1.jpg              the classes are split into training and test classes,

    photos/train/oak/1.jpg        or the split is given by folders named like train, test (or query), and optionally
    photos/test/elm/7.jpg         validation and gallery, in any usual spelling, at the top or at another level

The name of a class is the path of its folder, without folders that all classes are in and those
that give the split. Folders inside a folder that holds images belong to its class. A folder is a
split only if all images are in such folders at its level; otherwise it is an ordinary class, as
long as that is certain.
"""  # noqa: E501

from collections.abc import Mapping
from typing import NamedTuple

from dml_jax.data import sessions
from dml_jax.data.files import IMAGE_SUFFIXES, Entry, Files, is_image
from dml_jax.data.prepare.sources import Options, Recipe
from dml_jax.errors import DataError, counted

Parts = tuple[str, ...]  # the names of the folders that an image is in, or some of them
DECIDE = (
    "--splits=train:valid:test names the folders for training, validation and test, "
    "--splits=classes divides the classes instead, --splits=none takes them for classes"
)


class _Layout(NamedTuple):
    """How a folder is read."""

    classes: Mapping[Parts, Parts]  # the folders of an image -> its class
    splits: Mapping[Parts, str]  # -> its split; empty if the classes are to be divided
    doubts: list[str]


def find(files: Files, options: Options) -> list[Entry]:
    """Takes every file with the suffix of an image as one; its class is the path of its folder."""
    folders = {path: tuple(path.split("/")[:-1]) for path in files if is_image(path)}
    if not folders:
        raise DataError(
            "there is no class folder with images; put the images of each class into a folder, "
            f"with names that end in {', '.join(IMAGE_SUFFIXES)}"
        )
    top = () in folders.values()
    layout = None if top else _read(folders, options)
    stray = [
        path
        for path, folder in folders.items()
        if not (layout.classes[folder] if layout else folder)
    ]
    if stray or layout is None:
        raise DataError(
            f"{counted(len(stray), 'image')}, e.g. {stray[0]}, "
            f"{'is' if len(stray) == 1 else 'are'} in no class folder: put the images of each "
            f"class into a folder{_or_none(stray[0])}"
        )
    return [
        Entry(path, files[path], "/".join(layout.classes[folder]), layout.splits[folder])
        for path, folder in folders.items()
    ]


def _or_none(stray: str) -> str:
    return f", or give --splits=none if {stray.split('/')[-2]!r} is a class" if "/" in stray else ""


def doubts(files: Files, options: Options) -> list[str]:
    """What the reading of the folders had to guess."""
    return _read(
        {path: tuple(path.split("/")[:-1]) for path in files if is_image(path)}, options
    ).doubts


def _read(folders: Mapping[str, Parts], options: Options) -> _Layout:
    held = set(folders.values())  # the folders that hold images
    said = {parts: tuple(map(options.split_of, parts)) for parts in held}
    found: list[str] = []
    level = _level(said, held)
    if level is None and options.named() and any(any(splits) for splits in said.values()):
        outside = min(parts for parts, splits in said.items() if not any(splits))
        raise DataError(
            f"--splits={options.splits}: the folder {'/'.join(outside)!r} is in none of them; "
            "name it, too"
        )
    if level is None and options.named():
        raise DataError(f"--splits={options.splits}: there are no folders of these names")
    if level is None:
        splits = dict.fromkeys(held, "")
        inner = (
            _without_splits(said)
            if options.splits == "classes"
            else {parts: parts for parts in held}
        )
        if options.splits == "auto":
            found += _check_mixed(said)
    else:
        splits = {parts: words[level] for parts, words in said.items()}
        inner = {parts: parts[:level] + parts[level + 1 :] for parts in held}
        if len(set(splits.values())) == 1:
            name = min(parts[level] for parts in held)
            found.append(
                f"all images are in the folder {name!r}, so it gives no split: its classes are "
                "divided"
            )
            splits = dict.fromkeys(held, "")
    classes, nested = _outermost(inner, options.session)
    found += nested
    shared = _shared(set(classes.values()))
    return _Layout({parts: label[shared:] for parts, label in classes.items()}, splits, found)


def _level(said: Mapping[Parts, Parts], held: set[Parts]) -> int | None:
    """The level of the folders that give the split of every image; None if there is no such
    level."""
    for level in range(min(map(len, held), default=0)):
        if all(words[level] for words in said.values()):
            beside = {parts[:level] + parts[level + 1 :] for parts in held}
            alone = len({parts[level] for parts in held}) == 1
            return None if alone and () in beside else level  # a single folder of images is a class
    return None


def _without_splits(said: Mapping[Parts, Parts]) -> dict[Parts, Parts]:
    return {
        parts: tuple(part for part, split in zip(parts, words, strict=True) if not split) or parts
        for parts, words in said.items()
    }


def _check_mixed(said: Mapping[Parts, Parts]) -> list[str]:
    """Refuses folders that look like splits, beside others, if it is not certain that they are
    classes."""
    looks = {parts: words for parts, words in said.items() if any(words)}
    owner: dict[Parts, Parts] = {}
    for parts, bare in sorted(_without_splits(said).items()):
        other = owner.setdefault(bare, parts)
        if other != parts and (parts in looks or other in looks):
            raise DataError(
                f"the class {'/'.join(bare)!r} is in {'/'.join(other)!r} and in "
                f"{'/'.join(parts)!r}, beside folders that give no split; {DECIDE}"
            )
    above = {split for words in looks.values() for split in words[:-1]} - {
        ""
    }  # of folders that hold others
    if {"train", "test"} <= above:
        parts = next(parts for parts, words in sorted(looks.items()) if any(words[:-1]))
        raise DataError(
            f"folders such as {parts[0]!r} look like splits, but others beside them do not; "
            f"{DECIDE}"
        )
    names = sorted(
        {
            part
            for parts, words in looks.items()
            for part, split in zip(parts, words, strict=True)
            if split
        }
    )
    return (
        [f"the folders {', '.join(map(repr, names[:4]))} count as classes, not as splits"]
        if names
        else []
    )


def _outermost(
    folders: Mapping[Parts, Parts], session: str
) -> tuple[dict[Parts, Parts], list[str]]:
    """The class of each folder: the outermost folder around it that holds images, and what is to be
    said of it."""
    held = set(folders.values()) - {()}
    outer = {
        parts: next((parts[:i] for i in range(1, len(parts)) if parts[:i] in held), parts)
        for parts in held
    }
    inside = sorted(parts for parts in held if outer[parts] != parts)
    if (
        session == sessions.FOLDER
    ):  # a folder that holds folders of images, or the one around it, is the class
        around = {outer[parts] for parts in inside}
        classes = {p: outer[p] if outer[p] != p or p in around else p[:-1] or p for p in held}
        return {given: classes.get(parts, ()) for given, parts in folders.items()}, []
    said = []
    if inside:
        said.append(
            f"{counted(len(inside), 'folder')} inside class folders, e.g. "
            f"{'/'.join(inside[0])!r}, {'counts' if len(inside) == 1 else 'count'} as part of "
            f"that class, here {'/'.join(outer[inside[0]])!r}"
        )
    shared = _shared(set(outer.values()))
    if deep := sorted(label for label in set(outer.values()) if len(label) > shared + 1):
        above = {label[:-1] for label in deep}
        said.append(
            f"{counted(len(deep), 'class')}, e.g. {'/'.join(deep[0][shared:])!r}, "
            f"{'is a folder' if len(deep) == 1 else 'are folders'} in "
            f"{counted(len(above), 'folder')}; if such folders are parts of one class, such as "
            "days, give session=folder"
        )
    return {given: outer.get(parts, ()) for given, parts in folders.items()}, said


def _shared(classes: set[Parts]) -> int:
    """The number of folders that all classes are in."""
    count = 0
    while (
        classes
        and min(map(len, classes)) > count + 1
        and len({parts[count] for parts in classes}) == 1
    ):
        count += 1
    return count


def recognised(files: Files) -> bool:
    return any(map(is_image, files))


RECIPE = Recipe(find, doubts=doubts, reads=(), in_place=True, recognised=recognised)
