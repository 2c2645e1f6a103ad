"""Embeddings without learning, which a trained network has to beat: raw pixels and a colour histogram."""

import numpy as np
from PIL import Image

from dml_jax.config import Config
from dml_jax.data import transforms
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.train.embedding import read_ahead

SIDE = 32  # of the images whose pixels are compared
BINS = (12, 4, 4)  # of hue, saturation and value


def embeddings(config: Config, split: Split) -> dict[str, np.ndarray]:
    """Float32 [N, D] of the images of a split by control, "raw pixels" and "colour histogram"."""
    measures = {"raw pixels": pixels, "colour histogram": histogram}
    rows: dict[str, list[np.ndarray]] = {name: [] for name in measures}
    transform = transforms.evaluation(config.data)
    read = lambda index: transform(split.read(index, None))  # noqa: E731
    for batch in read_ahead(read, [range(len(split.labels))], config.evaluation.batch_size):
        for image in batch.images:
            if isinstance(image, DataError):
                raise image
            for name, measure in measures.items():
                rows[name].append(measure(image))
    return {name: np.stack(found) for name, found in rows.items()}


def pixels(image: np.ndarray) -> np.ndarray:
    """The pixels of an image uint8 [H, W, 3], reduced to at most `SIDE` x `SIDE`: float32 [D]."""
    small = Image.fromarray(image)
    small = small.resize((min(small.width, SIDE), min(small.height, SIDE)), Image.Resampling.BOX)
    return np.asarray(small, np.float32).ravel()


def histogram(image: np.ndarray) -> np.ndarray:
    """Square roots of the shares of the pixels with each hue, saturation and value: uint8 [H, W, 3] -> float32 [192].

    The dot product of two is the Bhattacharyya coefficient of the histograms.
    """
    hsv = np.asarray(Image.fromarray(image).convert("HSV")).reshape(-1, 3)
    hue, saturation, value = (hsv[:, i].astype(np.int64) * bins // 256 for i, bins in enumerate(BINS))
    cells = (hue * BINS[1] + saturation) * BINS[2] + value
    counts = np.bincount(cells, minlength=int(np.prod(BINS)))
    return np.sqrt(counts / len(hsv)).astype(np.float32)
