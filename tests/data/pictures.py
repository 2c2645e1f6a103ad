"""Generates small, distinct test images and image files."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int, height: int = 24, width: int = 32) -> np.ndarray:
    """Random coloured patches: uint8 [height, width, 3]."""
    patches = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC))


def encoded(seed: int, height: int = 24, width: int = 32, kind: str = "JPEG", **options: object) -> bytes:
    """The content of an image file in Pillow's format `kind`; `options` are those of
    `Image.save`."""
    file = io.BytesIO()
    Image.fromarray(pixels(seed, height, width)).save(file, kind, **options)
    return file.getvalue()


def write(path: Path, seed: int, height: int = 24, width: int = 32) -> Path:
    """Writes a JPEG file, creating its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(seed, height, width, quality=90))
    return path
