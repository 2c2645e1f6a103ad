"""The third step of a preparation: images, encoded while they were checked, become records with an index."""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from array_record.python.array_record_module import ArrayRecordWriter

from dml_jax.data import decode, split_metadata, transforms
from dml_jax.data.prepare import check as check_images
from dml_jax.data.prepare.check import ImageFacts
from dml_jax.data.prepare.sources import Entry, File
from dml_jax.data.store import INDEX, RECORDS
from dml_jax.files import name_file, sha256

JPEG_QUALITY = 90  # of resized images


def encode(data: bytes, image: np.ndarray, short_side: int = 0, pixels: bool = False) -> bytes:
    """The stored form of an image file: JPEG (except CMYK) and 8-bit RGB PNG unchanged, all others as RGB PNG.

    Args:
      data, image: an image file, and its pixels, uint8 [H, W, 3].
      short_side: images whose shorter side is longer are resized to it and stored as JPEG; 0 for no resizing.
      pixels: store uncompressed pixels (PPM), which need no decoding but much more space.
    """
    large = 0 < short_side < min(image.shape[:2])
    if large:
        image = np.ascontiguousarray(transforms.resize_shorter(image, short_side))
    if pixels:
        return decode.encode_ppm(image)
    if large:
        return simplejpeg.encode_jpeg(image, quality=JPEG_QUALITY, colorspace="RGB", colorsubsampling="420")
    return data if decode.is_plain(data) else decode.encode_png(image)


def check(
    entries: Sequence[Entry],
    spool: Path,
    short_side: int,
    pixels: bool,
    threads: int,
    progress: Callable[[int], None],
) -> tuple[list[Entry], dict[int, ImageFacts], dict[int, str]]:
    """Decodes every image, once, and encodes the usable ones.

    Args:
      spool: file for the images that are not stored as they are.
      progress: called with the number of images checked so far.

    Returns:
      The entries, with the encoded images as files; facts of the usable and reasons of the unusable images, by index.
    """
    encoded, lock = list(entries), threading.Lock()

    def keep(i: int, data: bytes, image: np.ndarray) -> None:
        stored = encode(data, image, short_side, pixels)
        if stored is not data:
            with lock:
                encoded[i] = entries[i]._replace(file=File(spool, file.tell(), file.write(stored)))

    with name_file(spool), spool.open("wb") as file:
        facts, reasons = check_images.inspect_images(entries, threads, progress, keep)
    return encoded, facts, reasons


def write(
    directory: Path,
    entries: Sequence[Entry],
    *,
    compressed: bool,
    threads: int,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Writes the images, as `check` returns them, and the index of a data set to a folder.

    Returns the fields of the marker file that describe what was written.
    """
    splits = split_metadata.from_entries(entries)
    content, done = hashlib.sha256(), 0
    (directory / RECORDS).mkdir()
    for split in splits:
        members = [entry for entry in entries if entry.split == split]
        images = check_images.ordered_map(lambda entry: entry.file.read(), members, threads)
        path = directory / RECORDS / f"{split}.array_record"
        options = "group_size:1" if compressed else "group_size:1,uncompressed"
        with name_file(path), contextlib.closing(ArrayRecordWriter(str(path), options)) as writer:
            for entry, image in zip(members, images, strict=True):
                writer.write(image)
                content.update(hashlib.sha256(image).digest())
                content.update(f"{split}\n{entry.class_name}\n{entry.id}\n".encode())
                done += 1
                progress(done)
    split_metadata.save(directory / INDEX, {name: split._replace(files=()) for name, split in splits.items()})
    return {
        "sha256": content.hexdigest(),
        "splits": {
            name: {"images": len(split.labels), "classes": len(set(split.labels.tolist()))}
            for name, split in splits.items()
        },
        "metadata": sorted({column for split in splits.values() for column in split.metadata}),
        "files": {
            path.relative_to(directory).as_posix(): [path.stat().st_size, sha256(path)]
            for path in [directory / INDEX, *sorted((directory / RECORDS).iterdir())]
        },
    }
