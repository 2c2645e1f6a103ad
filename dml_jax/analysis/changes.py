"""Changes to a folder of images: clicks in a CSV file, which move files once they are applied.

A row names an image by its path when the catalogue was made, and its new place, which no file had
then. So rows do not depend on each other: only the last one of an image counts, and changes can be
applied again after a kill, or reversed. Removed images move to the hidden folder `TRASH`.
"""

import csv
import errno
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, get_args

from dml_jax.errors import require
from dml_jax.files import locked, reading, sha256, write_rows

TRASH = ".trash"
WITHOUT_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
Kind = Literal["move", "merge", "delete", "keep", "undo"]


class Change(NamedTuple):
    """A row: what a click does to one image."""

    click: int  # from 1; a merge of classes has a row for each image
    change: Kind
    image: str  # "./path" in the folder
    sha256: str  # of the file
    to: str  # "./path" in the folder; of "keep", where it is not shown again; of "undo", the click

    @property
    def moves(self) -> bool:
        return self.change in ("move", "merge", "delete")


def read(file: Path) -> list[Change]:
    """The changes in a file; none if there is no file. A row that a kill cut off does not count."""
    if not file.exists():
        return []
    with reading(file, "restore it"):
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
        require(rows[:1] in ([], [[*Change._fields]]), f"the heading must be {Change._fields}")
        return [_parsed(*row) for row in rows[1:]]


def _parsed(click: str, change: str, image: str, digest: str, to: str) -> Change:
    for place in (image, to) if change in ("move", "merge", "delete") else ():
        parts = PurePosixPath(place).parts
        inside = place.startswith("./") and parts and ".." not in parts and "\0" not in place
        require(bool(inside), f"{place}: must be a path in the folder, such as ./wren/1.jpg")
    require(change in get_args(Kind), f"{change}: must be one of {', '.join(get_args(Kind))}")
    require(change != "undo" or to.isdecimal(), f"{to}: must be the number of a click")
    return Change(int(click), change, image, digest, to)  # type: ignore[arg-type]


def append(file: Path, changes: Iterable[Change]) -> None:
    """Appends rows in one write, after what a kill may have cut off."""
    text = io.StringIO(newline="")
    there = file.read_bytes() if file.exists() else b""
    write_rows(text, [*([] if b"\n" in there else [Change._fields]), *changes])
    with file.open("r+b" if there else "wb") as output:
        output.truncate(output.seek(there.rfind(b"\n") + 1))
        output.write(text.getvalue().encode("utf-8", "surrogateescape"))
        output.flush()
        os.fsync(output.fileno())


def standing(changes: Sequence[Change]) -> list[Change]:
    """The changes that have not been undone."""
    undone = {int(each.to) for each in changes if each.change == "undo"}
    return [each for each in changes if each.change != "undo" and each.click not in undone]


def places(changes: Sequence[Change]) -> dict[str, Change]:
    """The last standing move of each image that has one to another place."""
    last = {each.image: each for each in standing(changes) if each.moves}
    return {image: each for image, each in last.items() if each.to != image}


def apply(folder: Path, file: Path, *, reverse: bool = False) -> int:
    """Moves the files of a folder to their new places or, with `reverse`, back.

    No file is overwritten or deleted. What an earlier call has moved stays; everything is checked
    before the first file is moved.

    Returns:
      The number of files that were moved.

    Raises:
      UserError: a file is missing or has another content, or another one is in its new place.
    """
    with locked(file):
        moves = [
            (folder / start, folder / end, each.sha256)
            for each in places(read(file)).values()
            for start, end in [(each.to, each.image) if reverse else (each.image, each.to)]
        ]
        pending = [(start, end) for start, end, digest in moves if _pending(start, end, digest)]
        for start, end in pending:
            end.parent.mkdir(parents=True, exist_ok=True)
            _move(start, end)
    return len(pending)


def applied(folder: Path, changes: Sequence[Change]) -> int:
    """How many of the images are in their new places, and no longer in their old ones."""
    pairs = [(folder / each.image, folder / each.to) for each in places(changes).values()]
    return sum(end.exists() and not start.exists() for start, end in pairs)


def _pending(start: Path, end: Path, digest: str) -> bool:
    """Whether a file has to be moved; UserError if it cannot be."""
    if not os.path.lexists(start):
        there = end.is_file() and sha256(end) == digest
        require(there, f"{start}: is missing; put it back or remove its row")
        return False
    regular = start.is_file() and not start.is_symlink()
    require(regular, f"{start}: is not a file; remove its row")
    same = sha256(start) == digest
    require(same, f"{start}: has changed since the catalogue was made; make it again")
    free = not os.path.lexists(end) or end.samefile(start)  # a kill may leave both names
    require(free, f"{end}: is there already; rename it")
    return True


def _move(start: Path, end: Path) -> None:
    """Renames a file unless the new name exists, by a second name; without links, by checking."""
    try:
        os.link(start, end)
    except FileExistsError:
        require(end.samefile(start), f"{end}: is there already; rename it")
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        start.rename(end)
        return
    start.unlink()
