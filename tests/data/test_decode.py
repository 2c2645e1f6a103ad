"""Which files are decoded, and to which pixels; see also tests/golden/test_transforms.py."""

import io
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from dml_jax.data import decode
from dml_jax.errors import DataError
from tests.data import pictures

RAMP = (np.arange(600, dtype=np.uint16) * 109).reshape(20, 30)  # 0 to 65,291


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_heic_with_its_extra() -> None:
    """Upright, nearly the pixels that were encoded; damage is an error."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pixels, exif = pictures.pixels(3, 48, 64), Image.Exif()
    exif[decode.ORIENTATION] = 6
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=100, chroma=444, exif=exif.tobytes())
    data = file.getvalue()
    decoded = decode.rgb(data)
    expected = np.rot90(pixels, -1)
    assert decoded.shape == expected.shape
    assert np.abs(decoded.astype(int) - expected).mean() < 3
    for damaged in (data[: len(data) // 2], data[:40] + bytes(60) + data[100:]):
        with pytest.raises(DataError):
            decode.rgb(damaged)
    assert decode.FORMATS == ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM")
    with pytest.raises(DataError, match="not an image"):  # of another brand
        decode.rgb(data[:8] + b"heim" + data[12:])


def test_heic_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(DataError, match=r"^is HEIC, which needs one more package: pip install pillow-heif$"):
        decode.rgb(b"\0\0\0\x18ftypheic" + bytes(100))


def test_avif_and_mpo() -> None:
    """AVIF nearly as it was encoded and upright; of an MPO file, the first image, a JPEG."""
    pixels, exif = pictures.pixels(3, 48, 64), Image.Exif()
    exif[decode.ORIENTATION] = 6
    image = Image.fromarray(pixels)
    decoded = decode.rgb(saved(image, "AVIF", quality=100, exif=exif))
    assert decoded.shape == (64, 48, 3)
    assert np.abs(decoded.astype(int) - np.rot90(pixels, -1)).mean() < 3
    mpo = saved(image, "MPO", quality=95, save_all=True, append_images=[Image.new("RGB", (64, 48))])
    np.testing.assert_array_equal(decode.rgb(mpo), decode.rgb(saved(image, "JPEG", quality=95)))


def test_libtiff_writes_no_lines_without_a_file_name(capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(saved(Image.fromarray(pictures.pixels(3, 48, 64)), "TIFF", compression="tiff_lzw"))
    data[200:900] = b"\xff" * 700
    with pytest.raises(DataError, match="damaged"):
        decode.rgb(bytes(data))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "big-endian TIFF", "PGM"])
def test_16_bit_greyscale_keeps_its_high_byte(kind: str) -> None:
    if kind == "PGM":
        data = b"P5\n30 20\n65535\n" + RAMP.astype(">u2").tobytes()
    elif kind == "big-endian TIFF":
        data = saved(Image.frombytes("I;16B", (30, 20), RAMP.astype(">u2").tobytes()), "TIFF")
    else:
        data = saved(Image.fromarray(RAMP), kind)
    np.testing.assert_array_equal(decode.rgb(data), np.repeat((RAMP >> 8)[:, :, None], 3, axis=2))


def tiff(pixels: bytes, bits: int, photometric: int = 1) -> bytes:
    """An uncompressed greyscale TIFF file of 4 x 2 pixels."""
    tags = {256: 4, 257: 2, 258: bits, 259: 1, 262: photometric, 273: 200, 278: 2, 279: len(pixels)}
    entries = b"".join(np.array([tag, 3, 1, 0, value, 0], "<u2").tobytes() for tag, value in tags.items())
    head = b"II*\0\x08\0\0\0" + np.uint16(len(tags)).tobytes()
    return (head + entries + bytes(4)).ljust(200, b"\0") + pixels


def test_white_is_zero_and_12_bits() -> None:
    values = np.array([[0, 256, 4096, 65535], [128, 30000, 32768, 65280]], "<u2")
    normal, inverted = (decode.rgb(tiff(values.tobytes(), 16, photometric))[:, :, 0] for photometric in (1, 0))
    np.testing.assert_array_equal(normal, values >> 8)
    np.testing.assert_array_equal(inverted, 255 - (values >> 8))
    packed = bytes([0x00, 0x08, 0x00, 0x40, 0x0F, 0xFF, 0xFF, 0x08, 0x00, 0x01, 0x00, 0x10])
    twelve = np.array([[0x000, 0x800, 0x400, 0xFFF], [0xFF0, 0x800, 0x010, 0x010]])
    np.testing.assert_array_equal(decode.rgb(tiff(packed, 12))[:, :, 0], twelve >> 4)


def test_pixels_of_unknown_range_are_rejected() -> None:
    for values, kind in ((RAMP.astype(np.int32) * 10_000, "32-bit integer"), (RAMP / np.float32(9), "floating-point")):
        with pytest.raises(DataError, match=f"has .*{kind} pixels, whose range is unknown"):
            decode.rgb(saved(Image.fromarray(values), "TIFF"))


def test_jpeg_files_of_very_many_scans_are_rejected() -> None:
    """Each goes over all pixels, however short it is; what looks like one in a comment or after the
    end is none."""
    data = saved(Image.new("L", (64, 64)), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    marks = b"\xff\xda" * 200
    comment = b"\xff\xfe" + (len(marks) + 2).to_bytes(2) + marks
    most = data[:-2] + 80 * scan + data[-2:]
    for harmless in (most, data + marks, data[:2] + comment + data[2:]):
        assert decode.rgb(harmless).shape == (64, 64, 3)
    end_in_comment = b"\xff\xfe\0\4\xff\xd9"
    for disguise in (b"", comment, end_in_comment, b"\xff\xd0", b"\xff\x01", b"\xff", b"\0"):
        many = data[:-2] + 100 * (disguise + scan) + data[-2:]
        with Image.open(io.BytesIO(many)) as image:
            assert image.convert("RGB").size == (64, 64)  # so it is not refused as damaged
        with pytest.raises(DataError, match=r"^more than 100 scans or .*; save it again$"):
            decode.rgb(many)


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_images_in_text_of_very_many_comments_are_rejected(kind: int) -> None:
    """A megabyte of them takes Pillow a quarter of a minute, and twice as many four times as
    long."""
    head, pixels = ((b"P%d\n1 2\n%s" % (kind, b"" if kind == 1 else b"255\n")), b"0 1 " * (3 if kind == 3 else 1))
    assert decode.rgb(head + 80 * b"#\n" + pixels).shape == (2, 1, 3)
    with pytest.raises(DataError, match=r"^more than 100 scans or comments, which"):
        decode.rgb(head + 101 * b"#\n" + pixels)
    binary = b"P6\n6 7\n255\n" + b"#" * 126
    assert (decode.rgb(binary) == ord("#")).all()


@pytest.mark.parametrize("kind", ["EPS", "JPEG2000", "ICO", "TGA"])
def test_other_formats_are_rejected(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In particular PostScript, whose decoder runs Ghostscript."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was called"))
    with pytest.raises(DataError, match=r"^not an image \(JPEG, PNG, GIF, BMP, TIFF, WEBP, AVIF, PPM\)$"):
        decode.rgb(pictures.encoded(3, kind=kind))


def test_images_of_pillow_have_the_pixels_of_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    picture = Image.fromarray(pictures.pixels(3))
    files = [
        pictures.encoded(3, exif=exif),
        saved(Image.fromarray(RAMP), "PNG", exif=exif),
        saved(picture.convert("CMYK"), "JPEG"),
        saved(picture.convert("P"), "PNG", transparency=0),
        saved(picture.convert("LA"), "PNG"),
        b"P5\n30 20\n65535\n" + RAMP.astype(">u2").tobytes(),
    ]
    for data in files:
        np.testing.assert_array_equal(decode.from_pillow(Image.open(io.BytesIO(data))), decode.rgb(data))
    with pytest.raises(DataError, match="damaged: "):
        decode.from_pillow(Image.open(io.BytesIO(files[0][:-200])))
    monkeypatch.setattr(decode, "LIMIT", 24 * 32 - 1)
    with pytest.raises(DataError, match="more than 767 pixels"):
        decode.from_pillow(picture)


def test_few_images_are_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the memory allows, of more threads; one that needs more than all of it is decoded
    alone."""
    monkeypatch.setattr(decode, "MEMORY", 1000)
    lock, used, most = threading.Lock(), 0, 0

    def use(count: int) -> None:
        nonlocal used, most
        with decode.Room() as room:
            room.take(count)
            with lock:
                used += count
                most = max(most, used)
                assert used <= max(1000, count)
            time.sleep(0.002)
            with lock:
                used -= count

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(use, [400, 300, 300, 5000, 200, 900] * 20))
    assert (most, decode.Room._used) == (5000, 0)


@pytest.mark.parametrize(("kind", "mode", "need"), [("PNG", "RGB", 12), ("JPEG", "RGB", 3), ("JPEG", "CMYK", 12)])
def test_the_memory_of_an_image_counts_until_it_was_used(kind: str, mode: str, need: int) -> None:
    data = saved(Image.fromarray(pictures.pixels(3, 10, 20)).convert(mode), kind)
    assert decode.size(data) == (20, 10)
    with decode.decoded(data) as pixels:
        assert (pixels.shape, decode.Room._used) == ((10, 20, 3), 200 * need)
    assert decode.Room._used == 0
    with pytest.raises(DataError, match="damaged"):
        decode.rgb(data[: len(data) // 2])
    assert decode.Room._used == 0


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_pixels_do_not_depend_on_strips(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, colours = (io.BytesIO(), Image.fromarray(np.random.default_rng(0).integers(0, 256, (37, 23, 3), np.uint8)))
    (colours.convert("L") if mode == "I;16" else colours).convert(mode).save(data, "TIFF")
    whole = decode.rgb(data.getvalue())
    monkeypatch.setattr(decode, "STRIP", 23 * 5)
    np.testing.assert_array_equal(decode.rgb(data.getvalue()), whole, strict=True)


def test_too_little_memory_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **options: object) -> None:
        raise MemoryError

    for kind, owner, name in (("PNG", Image.Image, "load"), ("JPEG", decode.simplejpeg, "decode_jpeg")):
        file = pictures.encoded(0, 8, 8, kind)
        monkeypatch.setattr(owner, name, fail)
        with pytest.raises(MemoryError):
            decode.rgb(file)
        monkeypatch.undo()


def test_pixels_as_stored() -> None:
    """Without the EXIF rotation, as the loaders of the papers' authors give them: JPEG by
    simplejpeg, PNG by Pillow."""
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    for kind in ("JPEG", "PNG"):
        plain, rotated = pictures.encoded(3, kind=kind), pictures.encoded(3, kind=kind, exif=exif)
        stored = decode.rgb(plain)
        np.testing.assert_array_equal(decode.rgb(rotated, upright=False), stored)
        np.testing.assert_array_equal(decode.rgb(rotated), np.rot90(stored, -1))
        opened = Image.open(io.BytesIO(rotated))
        np.testing.assert_array_equal(decode.from_pillow(opened, upright=False), stored)
        assert (decode.is_rotated(plain), decode.is_rotated(rotated)) == (False, True)
    exif[decode.ORIENTATION] = 1
    assert not decode.is_rotated(pictures.encoded(3, exif=exif))
    assert not decode.is_rotated(b"\xff\xd8\xff")


def test_larger_images_are_allowed_by_an_environment_variable() -> None:
    """It is inherited by the processes that a command starts."""
    code = """if True:
        import io
        from PIL import Image
        from dml_jax.data import decode
        for side in (900, 1500):
            file = io.BytesIO()
            Image.new("L", (1000, side)).save(file, "PNG")
            try:
                print(decode.rgb(file.getvalue()).shape)
            except decode.TooManyPixels as error:
                print(error)
    """
    small = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {decode.MEGAPIXELS: "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert small.stdout.splitlines() == [
        "(900, 1000, 3)",
        "more than 1000000 pixels; the environment variable DML_JAX_MEGAPIXELS allows more",
    ]
