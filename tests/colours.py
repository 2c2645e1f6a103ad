"""A model whose embeddings can be computed by hand, and its images."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dml_jax.errors import DataError
from dml_jax.evaluation.open_set import Photographs
from dml_jax.inference.embedding_model import EmbeddingModel
from tests.tiny_model import identity

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250), "grey": (120, 120, 120)}


def row_of(mean: np.ndarray) -> np.ndarray:
    """The embedding of a mean colour, [4]."""
    row = np.append(mean - 100, 1.0)
    return (row / np.linalg.norm(row)).astype(np.float32)


class Colours:
    """Embeds an image as its normalised mean colour minus grey, and counts the images."""

    identity, method_distance, runtime, lacks_graph = identity(0), False, "jax", False
    shape, listed, embedded, trained = (8, 8), EmbeddingModel.listed, 0, ()

    def unseen(self) -> Photographs:
        """Twenty classes of ten images in all directions."""
        rng = np.random.default_rng(0)
        rows = np.repeat(rng.standard_normal((20, 4)), 10, axis=0)
        rows += 0.1 * rng.standard_normal((200, 4))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        names = np.repeat([f"other {i:02d}" for i in range(20)], 10)
        return Photographs(rows, names, np.tile(["a", "b"], 100))

    def training_classes(self) -> list[str]:
        return list(self.trained)

    def _row(self, image: Any) -> np.ndarray:
        try:
            pixels = image if isinstance(image, np.ndarray) else np.asarray(Image.open(image))
        except OSError:
            raise DataError(f"{image}: not an image") from None
        return row_of(pixels.reshape(-1, 3).mean(axis=0))

    def embed(self, images: Any) -> np.ndarray:
        Colours.embedded += len(images)
        return np.stack([self._row(image) for image in images])

    def embed_each(self, groups: Any, on_bad: Any) -> Any:
        for images in groups:
            Colours.embedded += len(images)
            rows = np.full((len(images), 4), np.nan, np.float32)
            for i, image in enumerate(images):
                try:
                    rows[i] = self._row(image)
                except DataError as error:
                    on_bad(error)
            yield rows


class Alone(Colours):
    """A model without images of other classes."""

    def unseen(self) -> Photographs:
        return Photographs(np.zeros((0, 0), np.float32), *np.zeros((2, 0), "U1"))


def picture(path: Path, colour: str, level: int = 0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), tuple(min(value + level, 255) for value in COLOURS[colour])).save(path)
    return str(path)


def pictures(folder: Path) -> dict[str, list[str]]:
    """Three images of each colour, in folder/<colour>."""
    return {c: [picture(folder / c / f"{i}.png", c, 9 * i) for i in range(3)] for c in COLOURS}
