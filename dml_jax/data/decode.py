"""Decoding image files to pixels, and encoding them losslessly.

The formats are JPEG (of MPO files the first image), PNG, GIF, BMP, TIFF, WebP, AVIF and PPM/PGM,
recognised by content; Pillow's other decoders are disabled, because some start programs (EPS) or
are rarely tested. HEIC, the format of phones, needs the extra "heic".

Pixels are Pillow's after applying the EXIF orientation, converting to RGB and dropping alpha,
except for 16-bit greyscale, which Pillow would clip to almost white. simplejpeg decodes JPEG files
other than CMYK to the same bits, faster. A decoder does not detect all damage, e.g. flipped bits in
a JPEG scan; checksums do, see `seal`.

The memory of the images that all threads decode at a time is limited: see `Room`.
"""

import contextlib
import ctypes
import io
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import numpy as np
import simplejpeg
from PIL import Image, ImageOps

from dml_jax.errors import DataError

# Pillow's names; PPM includes PGM.
FORMATS: tuple[str, ...] = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM")
HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1")  # bytes 4 to 12; AVIF may also use the last
NEEDS_HEIC = "is HEIC, which needs one more package: pip install pillow-heif"
# Environment variable: millions of pixels of the largest image that is decoded, with about 12 bytes
# each; processes that a command starts inherit it. By default, Pillow's limit for a decompression
# bomb.
MEGAPIXELS = "DML_JAX_MEGAPIXELS"
LIMIT = 1_000_000 * int(os.environ.get(MEGAPIXELS, "0")) or 89_478_485
Image.MAX_IMAGE_PIXELS = LIMIT
MEMORY = 2**29  # bytes that the images decoded at a time may need; a larger one is decoded alone
PILLOW, BASELINE, PROGRESSIVE = 12, 3, 9  # approximate bytes per pixel; the last two: simplejpeg
CMYK = ("CMYK", "YCCK")  # colours of JPEG files that Pillow decodes
STRIP = 2**22  # pixels that are converted at a time
# Scans of a JPEG file, as in libtiff: a scan of 13 bytes takes as long as one of all pixels.
MAX_SCANS = 100
MAX_COMMENTS = 100  # in a PPM or PGM file as text; for each, Pillow copies the rest of the file
MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # of JPEG, before a segment or the end
EXIF, ORIGINAL, CHANGED = 0x8769, 36867, 306  # EXIF tags of times
DAY = re.compile(r"[12]\d{3}\D\d\d\D\d\d")
BITS, PHOTOMETRIC, ORIENTATION = 0x0102, 0x0106, 0x0112  # TIFF and EXIF tags
ROTATED = range(2, 9)  # orientations other than upright
WARNINGS_LOCK = threading.Lock()  # warning filters are global to all threads
# Two threads may get the same image of Pillow, which reads its file when it is first used.
LOADING_LOCK = threading.Lock()
# libtiff would write about damaged files to stderr, without names.
with contextlib.suppress(AttributeError, OSError):
    ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler(None)
PPM = re.compile(rb"P6\n(\d{1,6}) (\d{1,6})\n255\n")  # header of an uncompressed image


class TooManyPixels(DataError):
    """An image has more than `LIMIT` pixels."""


class Room(AbstractContextManager["Room"]):
    """The memory for decoding and using an image; threads queue until it is free."""

    _turn, _freed, _used = threading.Lock(), threading.Condition(), 0  # shared by all threads

    def __init__(self) -> None:
        self._size = 0

    def take(self, count: int) -> None:
        """Waits for `count` bytes, which replace those of an earlier call."""
        self.__exit__()
        with Room._turn, Room._freed:  # nobody overtakes a large image
            Room._freed.wait_for(lambda: Room._used == 0 or Room._used + count <= MEMORY)
            Room._used += count
        self._size = count

    def __exit__(self, *exception: object) -> None:
        with Room._freed:
            Room._used -= self._size
            Room._freed.notify_all()
        self._size = 0


def rgb(data: bytes, *, upright: bool = True) -> np.ndarray:
    """Decodes the first frame of an image file to uint8 [H, W, 3], the highest 8 bits of a channel.

    With `upright`, the EXIF orientation is applied. Raises DataError for a file that is not an
    image of one of the `FORMATS`, damaged, too large, or of floats or 32-bit integers.
    """
    with decoded(data, upright=upright) as pixels:
        return pixels


@contextlib.contextmanager
def decoded(data: bytes, *, upright: bool = True) -> Iterator[np.ndarray]:
    """Context with the pixels of `rgb`, whose memory counts until its end; decode only one image in
    it."""
    with Room() as room:
        yield _decode(data, upright, room)


def _decode(data: bytes, upright: bool, room: Room) -> np.ndarray:
    jpeg = data[:3] == b"\xff\xd8\xff"
    scans = jpeg and data.count(b"\xff\xda") > MAX_SCANS and _scans(data) > MAX_SCANS
    if scans or (data[:2] in (b"P1", b"P2", b"P3") and data.count(b"#") > MAX_COMMENTS):
        raise DataError(
            "more than 100 scans or comments, which would take very long; save it again"
        )
    if jpeg and (pixels := _jpeg(data, upright, room)) is not None:
        return pixels
    if header := PPM.match(data):
        width, height = (int(word) for word in header.groups())
        if 0 < width * height <= LIMIT and len(data) == header.end() + 3 * width * height:
            return np.frombuffer(data, np.uint8, offset=header.end()).reshape(height, width, 3)
    with _usable(), _open(io.BytesIO(data)) as image:
        room.take(PILLOW * image.width * image.height)
        return _pixels(image, upright)


def size(data: bytes) -> tuple[int, int]:
    """Width and height by the header of an image file; DataError unless it is of `FORMATS`."""
    if data[:3] == b"\xff\xd8\xff":
        with contextlib.suppress(ValueError):  # Pillow decides whether the file is damaged
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            return width, height
    with _usable(), _open(io.BytesIO(data)) as image:
        return image.size


def from_pillow(image: Image.Image, *, upright: bool = True) -> np.ndarray:
    """The pixels of an image of Pillow, equal to `rgb` of its file: uint8 [H, W, 3]."""
    with _usable(), Room() as room:
        if image.width * image.height > LIMIT:
            raise Image.DecompressionBombError
        room.take(PILLOW * image.width * image.height)
        with LOADING_LOCK:
            image.load()
        return _pixels(image, upright)


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    """Turns the many types of exceptions that Pillow raises for damaged files into DataErrors."""
    try:
        yield
    except MemoryError:  # the file may be intact
        raise
    except Exception as error:
        why = f"damaged: {str(error) or type(error).__name__}"
        if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
            what = f"more than {LIMIT} pixels; the environment variable {MEGAPIXELS} allows more"
            raise TooManyPixels(what) from error
        elif isinstance(error, Image.UnidentifiedImageError):
            why = f"not an image ({', '.join(FORMATS)})"
        elif isinstance(error, DataError):
            why = str(error)
        raise DataError(why) from error


def _pixels(image: Image.Image, upright: bool = True) -> np.ndarray:
    kind, tags = image.format, getattr(image, "tag_v2", {})
    image.load()
    if upright and image.getexif().get(ORIENTATION, 1) in ROTATED:  # a copy otherwise, too
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return _grey(image, tags.get(BITS, (16,))[0], inverted=tags.get(PHOTOMETRIC) == 0)
    if image.mode == "I" and kind == "PPM":
        return _grey(image, 16)
    if image.mode in ("I", "F"):
        what = "floating-point" if image.mode == "F" else "signed or 32-bit integer"
        remedy = "convert it to 8 or 16 bits per channel"
        raise DataError(f"has {what} pixels, whose range is unknown; {remedy}")
    image.info.pop("transparency", None)  # Pillow would warn that alpha is dropped
    width, height = image.size
    rows = max(1, STRIP // width)
    if height <= rows:
        return np.asarray(image.convert("RGB"))
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, rows):  # a copy of the whole image would need too much memory
        end = min(top + rows, height)
        pixels[top:end] = np.asarray(image.crop((0, top, width, end)).convert("RGB"))
    return pixels


def _grey(image: Image.Image, bits: int, inverted: bool = False) -> np.ndarray:
    """The highest 8 of `bits` bits of greyscale, uint8 [H, W, 3]; `inverted` if 0 is white."""
    grey = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
    return np.repeat((255 - grey if inverted else grey)[:, :, None], 3, axis=2)


def _open(file: IO[bytes]) -> Image.Image:
    """Opens an image file; raises Pillow's warning about more than `LIMIT` pixels."""
    formats, start = FORMATS, file.read(64)
    if start[4:12] in HEIC and b"avif" not in start[12:]:
        try:
            import pillow_heif
        except ImportError:
            raise DataError(NEEDS_HEIC) from None
        pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False)
        formats = ("HEIF",)
    with WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(file, formats=formats)


def exif_day(file: Path) -> str:
    """The day of a photograph's EXIF time, e.g. "2024:05:31"; empty if it is unknown."""
    with contextlib.suppress(Exception):
        if file.is_file():  # a pipe may have no end
            with file.open("rb") as opened, _open(opened) as image:
                exif = image.getexif()
                for time in (exif.get_ifd(EXIF).get(ORIGINAL), exif.get(CHANGED)):
                    if DAY.match(str(time)):  # zeros or spaces: the clock was not set
                        return str(time)[:10]
    return ""


def is_rotated(data: bytes) -> bool:
    """Whether an image file has an EXIF orientation other than upright."""
    with contextlib.suppress(Exception), _open(io.BytesIO(data)) as image:  # may be damaged
        return image.getexif().get(ORIENTATION, 1) in ROTATED
    return False


def _jpeg(data: bytes, upright: bool, room: Room) -> np.ndarray | None:
    """Decodes a JPEG file with simplejpeg; None if Pillow must be used instead."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours in CMYK or height * width > LIMIT:
            return None
        room.take((PROGRESSIVE if b"\xff\xc2" in data else BASELINE) * height * width)
        pixels = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
        if upright and (b"Exif\0" in data or b"tiff:Orientation" in data):
            with _open(io.BytesIO(data)) as image:
                orientation = image.getexif().get(ORIENTATION, 1)
            if orientation in ROTATED:
                stored = Image.fromarray(pixels)
                stored.getexif()[ORIENTATION] = orientation
                pixels = np.asarray(ImageOps.exif_transpose(stored))
        return pixels
    except MemoryError:
        raise
    except Exception:  # Pillow decides whether the file is damaged
        return None


def _scans(data: bytes) -> int:
    """The number of scans of a JPEG file, ignoring such bytes in other segments or behind it."""
    position, count = 2, 0
    while (marker := MARKER.search(data, position)) and marker[0] != b"\xff\xd9":
        count += marker[0] == b"\xff\xda"
        position = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
    return count


def is_plain(data: bytes) -> bool:
    """Whether a file is plain RGB: JPEG other than CMYK, or 8-bit PNG without palette and alpha."""
    if data[:3] == b"\xff\xd8\xff":
        try:
            return simplejpeg.decode_jpeg_header(data)[2] not in CMYK
        except ValueError:
            return False
    extras = b"tRNS" in data or b"eXIf" in data
    return data[:8] == b"\x89PNG\r\n\x1a\n" and data[24] == 8 and data[25] in (0, 2) and not extras


def encode_png(pixels: np.ndarray) -> bytes:
    """Encodes uint8 [H, W, 3] losslessly."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def encode_ppm(pixels: np.ndarray) -> bytes:
    """Encodes uint8 [H, W, 3] as a header and the raw pixels, which need no decoding."""
    height, width, _ = pixels.shape
    return b"P6\n%d %d\n255\n" % (width, height) + np.ascontiguousarray(pixels).tobytes()
