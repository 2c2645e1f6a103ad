"""Writing prepared data sets."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from dml_jax.data import decode, labels, transforms
from dml_jax.data.prepare import inspect, tfds_builder
from dml_jax.data.prepare.sources import Entry
from dml_jax.data.prepared import FORMAT, INDEX
from dml_jax.files import sha256

QUALITY = 90  # of images that are encoded anew


def stored(data: bytes, short_side: int = 0, pixels: bool = False) -> bytes:
    """What is packed of an image file: JPEG (but CMYK) and plain 8-bit PNG files as they are, all else as RGB PNG.

    Args:
      data: of a file that decodes.
      short_side: images whose shorter side has more pixels are resized to it and become JPEG; 0: none.
      pixels: store uncompressed pixels instead, which need no decoding and a lot of room.
    """
    if short_side or pixels:
        image = decode.rgb(data)
        large = 0 < short_side < min(image.shape[:2])
        image = transforms.resize_shorter(image, short_side) if large else image
        if pixels:
            return decode.ppm(image)
        if large:
            image = np.ascontiguousarray(image)
            return simplejpeg.encode_jpeg(image, quality=QUALITY, colorspace="RGB", colorsubsampling="420")
    if decode.plain(data):
        return data
    return decode.png(decode.rgb(data))


def write(
    directory: Path,
    entries: Sequence[Entry],
    about: Mapping[str, str],
    *,
    short_side: int,
    pixels: bool,
    threads: int,
    each: Callable[[int], None],
) -> dict[str, Any]:
    """Packs the images of a checked data set into `directory`, marker last.

    Returns:
      the marker's content.
    """
    parts = labels.number(entries)
    of_split = {split: [entry for entry in entries if entry.split == split] for split in parts}
    done = 0
    content = hashlib.sha256()

    def examples(split: str) -> Iterator[tuple[bytes, str, str]]:
        nonlocal done
        members = of_split[split]
        images = inspect.in_order(lambda e: stored(e.file.read(), short_side, pixels), members, threads)
        for entry, image in zip(members, images, strict=True):
            content.update(hashlib.sha256(image).digest())
            content.update(f"{split}\n{entry.label}\n{entry.id}\n".encode())
            done += 1
            each(done)
            yield image, entry.label, entry.id

    classes = sorted({name for part in parts.values() for name in part.classes})
    packed = tfds_builder.write(
        directory, {split: examples(split) for split in parts}, classes, about, compressed=not pixels
    )
    labels.save(directory / INDEX, {split: part._replace(files=()) for split, part in parts.items()})
    return {
        "format": FORMAT,
        "name": about["name"],
        "sha256": content.hexdigest(),
        "splits": {
            split: {"images": len(p.labels), "classes": len(set(p.labels.tolist()))} for split, p in parts.items()
        },
        "records": packed.relative_to(directory).as_posix(),
        "files": {
            path.relative_to(directory).as_posix(): [path.stat().st_size, sha256(path)]
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        },
    }
