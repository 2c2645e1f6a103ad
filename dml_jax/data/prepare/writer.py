"""Writing the images of a checked data set as records, with the index of their labels and names."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from dml_jax.data import decode, split_metadata, transforms
from dml_jax.data.prepare import check_images, tfds_builder
from dml_jax.data.prepare.source_files import Entry
from dml_jax.data.prepared import FORMAT, INDEX
from dml_jax.files import sha256

JPEG_QUALITY = 90  # of resized images


def encode(data: bytes, short_side: int = 0, pixels: bool = False) -> bytes:
    """The stored form of an image file: JPEG (except CMYK) and 8-bit RGB PNG unchanged, all others as RGB PNG.

    Args:
      data: content of a file that can be decoded.
      short_side: images whose shorter side is longer are resized to it and stored as JPEG; 0 for no resizing.
      pixels: store uncompressed pixels (PPM), which need no decoding but much more space.
    """
    if short_side or pixels:
        image = decode.rgb(data)
        large = 0 < short_side < min(image.shape[:2])
        image = transforms.resize_shorter(image, short_side) if large else image
        if pixels:
            return decode.encode_ppm(image)
        if large:
            image = np.ascontiguousarray(image)
            return simplejpeg.encode_jpeg(image, quality=JPEG_QUALITY, colorspace="RGB", colorsubsampling="420")
    if decode.is_plain(data):
        return data
    return decode.encode_png(decode.rgb(data))


def write(
    directory: Path,
    entries: Sequence[Entry],
    about: Mapping[str, str],
    *,
    short_side: int,
    pixels: bool,
    threads: int,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Writes the images and the index of a checked data set.

    Args:
      directory: to write to.
      entries: the images.
      about: name, home, citation and description of the data set.
      short_side, pixels: see `encode`.
      threads: number of threads that encode.
      progress: called with the number of images written so far.

    Returns:
      Content of the marker file, which the caller writes last.
    """
    splits = split_metadata.from_entries(entries)
    by_split = {split: [entry for entry in entries if entry.split == split] for split in splits}
    done = 0
    content = hashlib.sha256()

    def examples(split: str) -> Iterator[tfds_builder.Example]:
        nonlocal done
        members = by_split[split]
        images = check_images.ordered_map(lambda e: encode(e.file.read(), short_side, pixels), members, threads)
        for entry, image in zip(members, images, strict=True):
            content.update(hashlib.sha256(image).digest())
            content.update(f"{split}\n{entry.class_name}\n{entry.id}\n".encode())
            done += 1
            progress(done)
            yield image, entry.class_name, entry.id

    classes = sorted({name for split in splits.values() for name in split.classes})
    records = tfds_builder.write(
        directory, {split: examples(split) for split in splits}, classes, about, compressed=not pixels
    )
    split_metadata.save(directory / INDEX, {name: split._replace(files=()) for name, split in splits.items()})
    return {
        "format": FORMAT,
        "name": about["name"],
        "sha256": content.hexdigest(),
        "splits": {
            name: {"images": len(split.labels), "classes": len(set(split.labels.tolist()))}
            for name, split in splits.items()
        },
        "metadata": sorted({column for split in splits.values() for column in split.metadata}),
        "records": records.relative_to(directory).as_posix(),
        "files": {
            path.relative_to(directory).as_posix(): [path.stat().st_size, sha256(path)]
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        },
    }
