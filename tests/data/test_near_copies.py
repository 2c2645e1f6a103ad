"""Near-copies: which copies are found, and that other images of one background are not."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from dml_jax.data import near_copies


def drawn(seed: int) -> Image.Image:
    """Random blots on white or on a gradient."""
    rng = np.random.default_rng(seed)
    shades = rng.integers(60, 256, (4, 4, 3), dtype=np.uint8)
    around = Image.fromarray(shades).resize((200, 160), Image.Resampling.BICUBIC)
    image = around if seed % 2 else Image.new("RGB", (200, 160), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        x, y, width, height = rng.integers((30, 30, 20, 20), (140, 110, 60, 60))
        colour = tuple(rng.integers(0, 256, 3).tolist())
        draw.ellipse([x, y, x + width, y + height], fill=colour)
    return image.filter(ImageFilter.GaussianBlur(1))


def compressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=50)
    return Image.open(file).convert("RGB")


def cropped(image: Image.Image, share: float) -> Image.Image:
    width, height = image.size
    x, y = round(width * share), round(height * share)
    return compressed(image.crop((x, y, width - x, height - y)))


COPIES = {
    "compressed": compressed,
    "half the size": lambda image: image.resize((100, 80), Image.Resampling.LANCZOS),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "cropped by 1 %": lambda image: cropped(image, 0.01),
    "cropped by 3 %": lambda image: cropped(image, 0.03),
    "cropped by 5 %": lambda image: cropped(image, 0.05),
}


def thumbnails(images: list[Image.Image]) -> np.ndarray:
    return np.stack([near_copies.thumbnail(np.asarray(image)) for image in images])


@pytest.mark.parametrize("kind", COPIES)
def test_copies_are_found_and_no_others(kind: str) -> None:
    images = [drawn(seed) for seed in range(120)]
    group, pairs = near_copies.find_copies(thumbnails([*images, *map(COPIES[kind], images[:20])]))
    detected = {tuple(sorted(pair)) for pair in group.argsort()[pairs].tolist()}
    planted = {(i, 120 + i) for i in range(20)}
    assert detected <= planted
    assert len(detected) >= 19


def test_repeated_and_flat_images() -> None:
    """Equal thumbnails are one group without pairs, however many; flat ones are never alike."""
    flat = [Image.new("RGB", (40, 40), (shade, shade, shade)) for shade in (255, 255, 0)]
    group, pairs = near_copies.find_copies(thumbnails([*flat, *[drawn(0)] * 500]))
    assert len(set(group[:3])) == 3
    assert len(set(group[3:])) == 1
    assert pairs.shape == (0, 2)
    assert near_copies.find_copies(thumbnails(flat))[1].shape == (0, 2)
