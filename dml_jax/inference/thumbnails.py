"""Small pictures of enrolled images, as JPEG files without metadata, and the two arrays that store them."""

import io
import itertools
from collections.abc import Sequence

import numpy as np
from PIL import Image

SIDE = 128  # pixels of the longer side
QUALITY = 80


def jpeg(pixels: np.ndarray) -> bytes:
    """A small JPEG file of an image uint8 [H, W, 3]."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def pack(files: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """All files in one array uint8 [bytes], and the end of each, int64 [N]."""
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([len(file) for file in files], dtype=np.int64)


def unpack(content: np.ndarray, ends: np.ndarray, count: int) -> list[bytes] | None:
    """The files that `pack` stored; None if the arrays are not those of `count` files."""
    if (content.dtype.kind, content.dtype.itemsize, content.ndim, ends.dtype.kind) != ("u", 1, 1, "i"):
        return None
    borders = np.concatenate([[0], ends.ravel()])
    if ends.shape != (count,) or (np.diff(borders) < 0).any() or borders[-1] != len(content):
        return None
    return [content[a:b].tobytes() for a, b in itertools.pairwise(borders.tolist())]
