"""Sessions: which photographs were taken together. Measurements leave whole sessions out.

Photographs of one session are often near-copies, so they are similar for other reasons than their
class. A session is the value of a column of the data set, the day of the EXIF time ("date"), the
folder inside the folder of a class ("folder"), or the part of a file's name that a regular
expression matches, e.g. "^(train|val|test)_".
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from dml_jax.data import decode
from dml_jax.data.files import Record
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError, DataError

DATE, FOLDER, COLUMN = "date", "folder", "session"
DAY_IN_NAME = r"(?<!\d)((?:19|20)\d\d([-_]?)[01]\d\2[0-3]\d)(?!\d)"  # IMG_20240512_101112.jpg
START_OF_NAME = r"^([^-_ .]+)[-_ ]"  # monday_0012.jpg


def find_sessions(
    session: str,
    names: Sequence[str],
    files: Sequence[str | Path] = (),
    columns: Mapping[str, Sequence[Any]] = {},
) -> list[str]:
    """The session of each image, "" if it is unknown.

    Args:
      session: "date", "folder", a column or a regular expression; "" for dates if every image has
        one, and there are several dates.
      names: N image paths; the last folder is the class or, for "folder", the session.
      files: the N image files, for "date".
      columns: further columns of the data set.
    """
    if not session:
        dates = _dates(names, files)
        return dates if all(dates) and len(set(dates)) > 1 else [""] * len(names)
    if session in columns:
        values = ["" if value is None else str(value) for value in columns[session]]
    elif session == DATE:
        values = _dates(names, files)
    elif session == FOLDER:
        values = [PurePath(name).parent.name for name in names]
    else:
        values = _matches(session, names)
    if not any(values):
        raise DataError(
            f"session={session}: fits none of {len(names):,} images, e.g. {names[0]}; give date, "
            "folder, a column or a regular expression of the file names"
        )
    return values


def _dates(names: Sequence[str], files: Sequence[str | Path]) -> list[str]:
    return [decode.exif_day(Path(file)) for file in files] or [""] * len(names)


def _matches(pattern: str, names: Sequence[str]) -> list[str]:
    """The first group of a regular expression in each file name, or its whole match."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        problem = f"is neither a column nor a regular expression ({error})"
        raise ConfigError(f"session={pattern}: {problem}") from None
    matches = [regex.search(PurePath(name).name) for name in names]
    return [match[1 if regex.groups else 0] or "" if match else "" for match in matches]


def sessions_by_file(
    groups: Iterable[Mapping[str, Sequence[Path | Record]]],
    session: str,
    warn: Callable[[str], object],
) -> tuple[dict[Path | Record, str], str]:
    """The session of each image, "" if it is unknown, and how sessions were guessed, "" if
    `session` says what they are.

    Args:
      groups: images by class.
    """
    session_of: dict[Path | Record, str] = {}
    guesses = []
    for classes in groups:
        pairs = [(label, image) for label, images in classes.items() for image in images]
        session_of |= {image: image.session for _, image in pairs if isinstance(image, Record)}
        files = [image for _, image in pairs if isinstance(image, Path)]
        names = [str(file) for file in files]
        labels = [label for label, _ in pairs]
        folders = {(label, Path(str(image)).parent) for label, image in pairs}
        flat = len(folders) == len({label for label, _ in folders})
        if session == DATE:
            values = _dates(names, files)
        elif not files or (session and not (session == FOLDER and flat)):
            values = find_sessions(session, names, files) if files else []
        else:
            if session:
                warn("warning: --session=folder: there are no folders in class folders; ignored")
            values, how = _guess(labels, files)
            guesses.append(how)
        session_of |= zip(files, values, strict=True)
    if session == DATE and session_of and not any(session_of.values()):
        warn(
            f"warning: --session=date: none of {len(session_of):,} images has an EXIF date, so "
            "sessions are unknown; give folder or a regular expression of the file names instead"
        )
    return session_of, next(iter(guesses), "")


def _guess(labels: Sequence[str], files: Sequence[Path]) -> tuple[list[str], str]:
    """The sessions if half of the classes have several, and what they are: the days of EXIF, days
    in names, or the starts of names if these repeat; otherwise unknown ones."""
    names, classes = [str(file) for file in files], len(set(labels))
    for what, values, images in (
        ("days in EXIF", _dates(names, files), 1),
        ("days in file names", _matches(DAY_IN_NAME, names), 1),
        ("starts of file names", _matches(START_OF_NAME, names), 2),
    ):
        pairs = set(zip(labels, values, strict=True))
        counts = Counter(label for label, _ in pairs)  # sessions of each class
        several = 2 * sum(count > 1 for count in counts.values()) >= classes
        if all(values) and several and images * len(pairs) <= len(files):
            return values, f"sessions: {len(set(values))} {what}"
    return [""] * len(files), "sessions: each image by itself"


def add_sessions(split: Split, session: str) -> Split:
    """The split with the column "session" if sessions are known."""
    values = find_sessions(session, split.ids, split.files, split.metadata)
    return split._replace(metadata={**split.metadata, COLUMN: values}) if any(values) else split


def check_sessions(splits: Mapping[str, Split], session: str) -> None:
    """Raises DataError if no image of "test" has one of its class in another session.

    Args:
      splits: "test" and, if there is one, "gallery", with their sessions.
    """
    pairs = [
        list(zip(split.labels.tolist(), names, strict=True))
        for split, names in zip(splits.values(), session_groups(splits).values(), strict=True)
    ]
    searched: dict[int, set[str]] = {}
    for label, name in pairs[-1]:
        searched.setdefault(label, set()).add(name)
    if not any(searched.get(label, set()) - {name} for label, name in pairs[0]):
        raise DataError(
            f"data.session={session}: no test image has another of its class in another session, "
            "so nothing can be measured; give another session, or leave it out"
        )


def session_groups(splits: Mapping[str, Split]) -> dict[str, list[str]]:
    """The arguments `groups` and `gallery_groups` of `metrics.retrieval`; empty if none is known.

    An image whose session is unknown is the only one of its session.
    """
    if COLUMN not in next(iter(splits.values())).metadata:
        return {}
    groups = {}
    for key, split in zip(("groups", "gallery_groups"), splits.values(), strict=False):
        names = split.metadata.get(COLUMN, [""] * len(split.labels))
        groups[key] = [str(name) or f"{key} {i}" for i, name in enumerate(names)]
    return groups
