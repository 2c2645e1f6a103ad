"""Draws the images of `dml_jax/data/probe`: `python -m tests.probe_images` writes them again."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

PROBE = Path(__file__).parents[1] / "dml_jax" / "data" / "probe"


def drawing(width: int, height: int) -> np.ndarray:
    """Ramps, fine stripes and a disc without symmetry, uint8 [height, width, 3]."""
    y, x = np.mgrid[:height, :width]
    red = 255 * x // (width - 1)
    green = 255 * y // (height - 1)
    blue = 127 + 120 * np.sign(np.sin(x / 4 + y / 11))
    disc = (x - width // 3) ** 2 + (y - height // 4) ** 2 < (height // 5) ** 2
    image = np.stack([red, green, blue], axis=2)
    image[disc] = (250, 40, 10)
    return image.astype(np.uint8)


def images() -> dict[str, tuple[Image.Image, dict[str, object]]]:
    """The images by name, with the options of `Image.save`."""
    rotated = Image.fromarray(drawing(97, 61)[:, :, 2])
    exif = rotated.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    colours = drawing(203, 149)
    alpha = 255 - colours[:, :, :1]
    return {
        "colour.jpg": (Image.fromarray(drawing(247, 193)), {"quality": 60}),
        "transparent.png": (Image.fromarray(np.dstack([colours, alpha]), "RGBA"), {}),
        "rotated.jpg": (rotated, {"exif": exif, "quality": 90}),
        # As large as a photograph, so that any shortcut on the way to the network changes pixels.
        "large.jpg": (Image.fromarray(drawing(1600, 1200)), {"quality": 30}),
    }


if __name__ == "__main__":
    for name, (image, options) in images().items():
        file = io.BytesIO()
        image.save(file, Path(name).suffix[1:].replace("jpg", "jpeg"), **options)
        (PROBE / name).write_bytes(file.getvalue())
