"""Sessions: which photographs were taken in one go. Measurements leave whole sessions out.

Photographs of one session are often near-copies of each other, so one of them finds the others for
other reasons than its class. A session is the value of a column of the data set, the day of the
EXIF time ("date"), the folder inside the folder of a class ("folder"), or the part of a file's name
that a regular expression matches, e.g. "^(train|val|test)_".
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from dml_jax.data import decode
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError, DataError

DATE, FOLDER, COLUMN = "date", "folder", "session"


def find(
    session: str,
    names: Sequence[str],
    files: Sequence[str | Path] = (),
    columns: Mapping[str, Sequence[Any]] = {},
) -> list[str]:
    """The session of each image, "" if it is unknown.

    Args:
      session: "date", "folder", a column or a regular expression; "" for dates if every image has
        one.
      names: of the images, paths whose last folder is the class or, for "folder", the session.
      files: the files of the images, which "date" reads.
      columns: further columns of the data set.
    """
    if session in columns:
        found = ["" if value is None else str(value) for value in columns[session]]
    elif session in ("", DATE):
        found = [decode.exif_day(Path(file)) for file in files] or [""] * len(names)
    elif session == FOLDER:
        found = [PurePath(name).parent.name for name in names]
    else:
        try:
            matches = [re.search(session, PurePath(name).name) for name in names]
        except re.error as error:
            raise ConfigError(
                f"session={session}: is neither a column nor a regular expression ({error})"
            ) from None
        found = [match[match.re.groups and 1] or "" if match else "" for match in matches]
    if not session:
        return found if all(found) and len(set(found)) > 1 else [""] * len(names)
    if not any(found):
        raise DataError(
            f"session={session}: fits none of {len(names):,} images, e.g. {names[0]}; give date, "
            "folder, a column or a regular expression of the file names"
        )
    return found


def of_classes(classes: dict[str, list[Path]], session: str) -> dict[Path, str]:
    """The session of each image of some classes."""
    files = [file for images in classes.values() for file in images]
    return (
        dict(zip(files, find(session, [str(file) for file in files], files), strict=True))
        if files
        else {}
    )


def added(split: Split, session: str) -> Split:
    """The split with the column "session" if sessions are known."""
    taken = find(session, split.ids, split.files, split.metadata)
    return split._replace(metadata={**split.metadata, COLUMN: taken}) if any(taken) else split


def groups(splits: Mapping[str, Split]) -> dict[str, list[str]]:
    """The arguments `groups` and `gallery_groups` of `metrics.retrieval`; empty if no session of a
    query is known.

    An image whose session is unknown is a session of its own.
    """
    if COLUMN not in next(iter(splits.values())).metadata:
        return {}
    return {
        key: [
            str(name) or f"{key} {i}"
            for i, name in enumerate(part.metadata.get(COLUMN, [""] * len(part.labels)))
        ]
        for key, part in zip(("groups", "gallery_groups"), splits.values(), strict=False)
    }
