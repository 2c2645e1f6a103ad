"""From the bytes of an image file to its pixels.

Pixels are those of Pillow: upright (EXIF orientation applied), converted to RGB, alpha dropped. JPEG files, all but
CMYK ones, are decoded by simplejpeg, which gives the same bits sooner. What a decoder cannot notice, such as bits
flipped in the middle of a JPEG scan, passes; checksums guard against that.
"""

import io
import re
import threading
import warnings

import numpy as np
import simplejpeg
from PIL import Image, ImageOps

from dml_jax.errors import DataError

LIMIT = 89_478_485  # pixels; Pillow's own threshold for suspecting a decompression bomb
ORIENTATION = 0x0112  # EXIF tag
OPENING = threading.Lock()  # Python keeps its filters of warnings for all threads together
PPM = re.compile(rb"P6\n(\d{1,6}) (\d{1,6})\n255\n")  # the header of pixels without any compression


def rgb(data: bytes) -> np.ndarray:
    """Decodes an image file of any format Pillow knows; of animations, the first frame.

    16-bit greyscale keeps its high byte (Pillow would clip it to nearly white).

    Returns:
      uint8 [H, W, 3].

    Raises:
      DataError: not an image, damaged, or more than `LIMIT` pixels; says which.
    """
    if data[:3] == b"\xff\xd8\xff" and (pixels := _jpeg(data)) is not None:
        return pixels
    if header := PPM.match(data):
        width, height = (int(word) for word in header.groups())
        if 0 < width * height <= LIMIT and len(data) == header.end() + 3 * width * height:
            return np.frombuffer(data, np.uint8, offset=header.end()).reshape(height, width, 3)
    try:
        with _opened(data) as image:
            upright = ImageOps.exif_transpose(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"more than {LIMIT} pixels") from error
    except Image.UnidentifiedImageError as error:
        raise DataError("empty" if not data else "not an image") from error
    except Exception as error:  # each of Pillow's plugins fails in its own way on damaged files
        raise DataError(f"damaged: {str(error) or type(error).__name__}") from error
    if upright.mode.startswith("I;16"):
        grey = (np.asarray(upright) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    upright.info.pop("transparency", None)  # its alpha is dropped anyway, and Pillow would warn
    return np.asarray(upright.convert("RGB"))


def _opened(data: bytes) -> Image.Image:
    """Opens an image file; more than `LIMIT` pixels are an error, where Pillow would warn."""
    with OPENING, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(data))


def _jpeg(data: bytes) -> np.ndarray | None:
    """Pixels of an ordinary JPEG file; None where Pillow has to decide."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours in ("CMYK", "YCCK") or height * width > LIMIT:
            return None
        orientation = 1
        header = data[: _scan(data)]
        if b"Exif\0" in header or b"tiff:Orientation" in header:
            with _opened(data) as image:
                orientation = image.getexif().get(ORIENTATION, 1)
        return _turned(simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False), orientation)
    except Exception:  # Pillow has the last word on what is damaged
        return None


def _scan(data: bytes) -> int:
    """Where the pixels of a JPEG file begin: its first scan, behind all metadata."""
    position = 2
    while data[position] == 0xFF and data[position + 1] != 0xDA:
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return position


def _turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Undoes an EXIF orientation (1..8; any other value means upright)."""
    flips = {
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: x[::-1].swapaxes(0, 1),
        7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
        8: lambda x: x[:, ::-1].swapaxes(0, 1),
    }
    return np.ascontiguousarray(flips[orientation](pixels)) if orientation in flips else pixels


def plain(data: bytes) -> bool:
    """Whether a file is one of those that are decoded soonest: JPEG but CMYK, or 8-bit PNG without alpha."""
    if data[:3] == b"\xff\xd8\xff":
        try:
            return simplejpeg.decode_jpeg_header(data)[2] not in ("CMYK", "YCCK")
        except ValueError:
            return False
    odd = b"tRNS" in data or b"eXIf" in data
    return data[:8] == b"\x89PNG\r\n\x1a\n" and data[24] == 8 and data[25] in (0, 2) and not odd


def png(pixels: np.ndarray) -> bytes:
    """Encodes uint8 [H, W, 3] without loss."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def ppm(pixels: np.ndarray) -> bytes:
    """uint8 [H, W, 3] as a file that needs no decoding: a header and the pixels."""
    height, width, _ = pixels.shape
    return b"P6\n%d %d\n255\n" % (width, height) + np.ascontiguousarray(pixels).tobytes()
