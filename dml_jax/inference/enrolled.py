"""Images of classes and their embeddings, known by the content of their files."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image as pillow

from dml_jax import seal
from dml_jax.class_names import normalised
from dml_jax.data.files import File, Record
from dml_jax.data.read_ahead import ordered_map
from dml_jax.errors import DataError, printable
from dml_jax.evaluation.open_set import Photographs
from dml_jax.evaluation.unit_rows import first_bad_row

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

UNKNOWN = "unknown"  # an answer, so no name of a class
NEW, KNOWN, OTHER_SESSION = "enrolled", "enrolled already", "with another session than before"

Image = str | Path | Record | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images
OnBad = Callable[[str], object] | None  # gets the reasons why images are left out


class Enrolled(NamedTuple):
    """An image of a class."""

    name: str  # of its class
    file: str  # its path or, in a prepared data set, its name; "" if it was not given by either
    content: str  # SHA-256 of its file, or ""
    session: str  # see `data.sessions`; "" if unknown
    row: np.ndarray = np.zeros(0, np.float32)  # float32 [D], its embedding


Items = dict[tuple[str, object], Enrolled]  # by class and content


def by_content(items: Iterable[Enrolled]) -> Items:
    """The images by class and content, the last of equal ones; an image without a file equals no
    other."""
    return {(item.name, item.content or object()): item for item in items}


def photographs(items: Items) -> Photographs:
    """The embeddings of images, with the names of their classes as labels."""
    names, sessions = (
        np.array([getattr(item, column) for item in items.values()], np.str_)
        for column in ("name", "session")
    )
    rows = [item.row for item in items.values()]
    return Photographs(np.stack(rows) if rows else np.zeros((0, 0), np.float32), names, sessions)


def read(
    model: "EmbeddingModel",
    classes: Mapping[str, Sequence[Image]],
    sessions: Mapping[str, Sequence[str]] | None,
    on_bad: OnBad,
    held: Items,
) -> Items:
    """Embeds images; for those whose content is `held`, takes its row, and its session and file if
    they have none. Arguments otherwise as for `Index.add`."""
    listed = list[tuple[str, Image, str]]()
    for name, value in classes.items():
        images = model.listed(value, str(name))
        check_name(name)
        of_class = sessions.get(name, ()) if sessions else [""] * len(images)
        if len(of_class) != len(images):
            problem = f"{len(of_class)}, but {len(images)} images; give one for each"
            raise DataError(f"sessions of {name}: {problem}")
        listed += ((name, *each) for each in zip(images, of_class, strict=True))
    digests = ordered_map(_digest, [image for _, image, _ in listed])
    items, image_of = Items(), dict[tuple[str, object], Image]()
    for (name, image, session), content in zip(listed, digests, strict=True):
        key = name, content or object()
        if key not in items:
            items[key] = Enrolled(name, _file_name(image), content, session)
            image_of[key] = image
    rows = {item.content: item for item in held.values() if item.content}
    for key, item in items.items():
        if old := held.get(key, rows.get(item.content)):
            known = {"file": item.file or old.file, "session": item.session or old.session}
            items[key] = item._replace(**known, row=old.row)
    new = [key for key, item in items.items() if not len(item.row)]
    usable, embedded = embed(model, [image_of[key] for key in new], on_bad)
    for i, row in zip(usable, embedded, strict=True):
        items[new[i]] = items[new[i]]._replace(row=row)
    return {key: item for key, item in items.items() if len(item.row)}


def embed(
    model: "EmbeddingModel", images: Sequence[Image], on_bad: OnBad
) -> tuple[list[int], np.ndarray]:
    """The positions of the images that can be used, and their embeddings, float32 [N, D].

    `on_bad` gets the reasons why images are left out; if it is None, they are errors.
    """
    if not images:
        return [], np.zeros((0, 0), np.float32)
    if on_bad:
        say = on_bad
        failed = lambda error: say(f"left out: {printable(str(error))}")  # noqa: E731
        (rows,) = model.embed_each([images], failed)
    else:
        rows = model.embed(images)
    usable = np.flatnonzero(~np.isnan(rows[:, 0])).tolist()
    rows = rows[usable]
    if bad := first_bad_row(rows):
        name = _file_name(images[usable[bad[0]]]) or f"image {usable[bad[0]]}"
        raise DataError(f"{name}: its embedding {bad[1]}; leave it out")
    return usable, rows


def updated(items: Items, now: Items) -> tuple[Items, Counter[str]]:
    """The images after others have been read `now`, and the numbers of images by what became of
    them.

    An earlier image is forgotten if its file has another content or class now, or if it is gone and
    an equal file has another class.
    """
    files = {item.file for item in now.values() if item.file}
    class_of = {item.content: item.name for item in now.values() if item.content}
    done, forgotten = Counter[str](), Items()
    for key, old in items.items():
        if key in now:
            continue
        if old.content in class_of and (old.file in files or _is_gone(old.file)):
            done[f"moved from {old.name} to {class_of[old.content]}"] += 1
        elif old.file in files:
            done["replaced, as the file has changed"] += 1
        else:
            continue
        forgotten[key] = old
    moved = {old.content for old in forgotten.values()}
    for key, item in now.items():
        if not (before := items.get(key)):
            done[NEW] += not item.content or item.content not in moved
            continue
        done[KNOWN] += 1
        done["found at another path"] += item.file != before.file
        done[OTHER_SESSION] += item.session != before.session
    left = items | now
    for key in forgotten:
        del left[key]
    return left, +done


def check_name(name: str) -> None:
    """Raises DataError unless a class can have this name."""
    if not isinstance(name, str) or normalised(name) != name or name in ("", UNKNOWN):
        raise DataError(
            f"{name!r}: cannot be a class name; give a text without surrounding spaces, in "
            f"Unicode's composed form (NFC), other than {UNKNOWN!r}"
        )


def _is_gone(file: str) -> bool:
    """Whether a file is no longer there; the images of prepared data sets are not files."""
    if not file or os.path.exists(file):
        return False
    from dml_jax.data.prepared_data import RECORDS  # slow to import

    data_sets = (folder for folder in Path(file).parents if (folder / RECORDS).is_dir())
    return not any(map(seal.sealed, data_sets))


def _digest(image: Image) -> str:
    """The SHA-256 of the file of an image; "" if there is none, or it cannot be read, which
    embedding it will say."""
    if isinstance(image, str | Path):
        image = Record(str(image), File(Path(image).expanduser()).read, "")
    try:
        data = image.read() if isinstance(image, Record) else image
    except DataError:
        return ""
    return hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else ""


def _file_name(image: Image) -> str:
    """The name of an enrolled image; "" unless it is a file or belongs to a prepared data set."""
    if isinstance(image, Record):
        return image.name
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
