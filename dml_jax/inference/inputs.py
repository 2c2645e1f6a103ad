"""Images to embed."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dml_jax.data.files import IMAGE_SUFFIXES, File, is_image, walk
from dml_jax.data.sources import list_skipped, packed_files, survey
from dml_jax.data.understand import summarise_doubts
from dml_jax.errors import DataError
from dml_jax.files import expand_path


@dataclass
class Item:
    """An image: its name in the output, its file and, once it has been read, the hexadecimal
    SHA-256 of its content."""

    name: str
    path: Path
    sha256: str = ""

    def read(self) -> bytes:
        """The content; DataError as for `data.files.File`."""
        content = File(self.path).read()
        self.sha256 = hashlib.sha256(content).hexdigest()
        return content


def image_files(paths: Iterable[str], warn: Callable[[str], object]) -> list[str]:
    """Image files among `paths`, and those below directories among them; `warn` gets a line about
    each kind of file that is left out.

    Raises DataError if a path does not exist, or a directory has no image file.
    """
    files, doubts = list[str](), list[str]()
    for name in paths:
        path = expand_path("IMAGE", name)
        if path.is_dir():
            contents = survey(walk(path))
            images = [str(file.path) for inner, file in contents.files.items() if is_image(inner)]
            left_out = [
                f"{name}: {line}" for line in contents.doubts + list_skipped(contents.files)
            ]
            if not images:
                suffixes = f"suffixes: {', '.join(IMAGE_SUFFIXES)}"
                none = [f"no image files ({suffixes})", *left_out]
                reasons = packed_files(contents.files) or none
                raise DataError(f"{name}: {'; '.join(reasons)}")
            files, doubts = files + images, doubts + left_out
        elif path.is_file():
            if reasons := packed_files([name]):
                raise DataError(reasons[0])
            files.append(str(path))
        else:
            raise DataError(f"{name}: there is no such file or directory")
    for line in summarise_doubts(doubts):
        warn(line)
    return files
