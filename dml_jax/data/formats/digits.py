"""Handwritten digits with random placement: built in, no download.

The 1,797 scans of 8×8 pixels that ship with scikit-learn (Alpaydin & Kaynak, UCI, 1998), each drawn
on a 24×24 canvas with random position, size, rotation, shear, contrast and noise. The training
classes are the digits 0-4 under the eight symmetries of the square (40 classes), drawn with new
random numbers at each read; the test classes are the digits 5-9, upright, always drawn alike.
"""

from functools import partial
from importlib.metadata import distribution

import numpy as np

from dml_jax.config import Data
from dml_jax.data.split import Split

SIDE = 24  # pixels of the canvas
SCALE = (1.05, 2.1)  # pixels of the canvas per pixel of the scan
ROTATION = np.deg2rad(36.0)
SHEAR = 0.25
CONTRAST = (0.6, 1.0)
NOISE = 0.08  # standard deviation, of the range black to white
PIXELS = np.indices((SIDE, SIDE)).reshape(2, -1) + 0.5  # centres of the canvas's pixels


def draw(scan: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws a scan, float [8, 8] in 0..1, in white on black, bilinearly: uint8 [24, 24, 3]."""
    scale = rng.uniform(*SCALE)
    angle, shear = rng.uniform(-ROTATION, ROTATION), rng.uniform(-SHEAR, SHEAR)
    contrast = rng.uniform(*CONTRAST)
    side = len(scan)
    margin = (SIDE - side * scale) / 2
    centre = SIDE / 2 + rng.uniform(-margin, margin, size=2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    inverse = np.linalg.inv(scale * rotation @ np.array([[1.0, shear], [0.0, 1.0]]))
    position = inverse @ (PIXELS - centre[:, None]) + side / 2 - 0.5
    corner = np.floor(position)
    fy, fx = position - corner
    padded = np.zeros((side + 4, side + 4))
    padded[2:-2, 2:-2] = scan
    # The corners in the padded scan, whose black border of two pixels stands for all farther ones.
    row, column = np.minimum(np.maximum(corner, -2), side).astype(int) + 2

    def at(down: int, right: int) -> np.ndarray:
        return padded.ravel().take((row + down) * (side + 4) + column + right)

    upper = (1 - fx) * at(0, 0) + fx * at(0, 1)
    lower = (1 - fx) * at(1, 0) + fx * at(1, 1)
    drawn = contrast * ((1 - fy) * upper + fy * lower) + NOISE * rng.standard_normal(SIDE * SIDE)
    grey = np.round(255 * np.clip(drawn, 0, 1)).astype(np.uint8).reshape(SIDE, SIDE, 1)
    return np.repeat(grey, 3, axis=2)


def transformed(scans: np.ndarray, symmetry: int) -> np.ndarray:
    """Scans under one of the square's symmetries: flipped from 4 on, then quarter turns."""
    return np.rot90(scans if symmetry < 4 else scans[..., ::-1], symmetry % 4, axes=(-2, -1))


def _scans() -> tuple[np.ndarray, np.ndarray]:
    """`sklearn.datasets.load_digits(return_X_y=True)` without importing scikit-learn, for speed."""
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


def _read(scans: np.ndarray, first: int, index: int, rng: np.random.Generator | None) -> np.ndarray:
    """`Split.read` for a split with images numbered from `first` on."""
    return draw(scans[index], np.random.default_rng((24, first + index)) if rng is None else rng)


def load(data: Data) -> dict[str, Split]:
    """The splits "train" (7,208 images of 40 classes) and "test" (896 images of 5 classes)."""
    scans, digits = _scans()
    scans = scans.reshape(-1, 8, 8) / 16.0
    seen, unseen = np.flatnonzero(digits < 5), np.flatnonzero(digits >= 5)
    train_scans = np.concatenate([transformed(scans[seen], s) for s in range(8)])
    train = Split(
        labels=np.concatenate([8 * digits[seen] + s for s in range(8)]).astype(np.int64),
        ids=[f"digit-{i:04d}-symmetry-{s}" for s in range(8) for i in seen],
        read=partial(_read, train_scans, 0),
        classes=[f"{digit} symmetry {s}" for digit in range(5) for s in range(8)],
    )
    test = Split(
        labels=digits[unseen].astype(np.int64) - 5,
        ids=[f"digit-{i:04d}" for i in unseen],
        read=partial(_read, scans[unseen], len(train_scans)),
        classes=[str(digit) for digit in range(5, 10)],
    )
    return {"train": train, "test": test}
