"""Answers to images, and how they are printed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dml_jax.errors import printable


class Answer(NamedTuple):
    """The answer to an image."""

    name: str  # the most probable class, or "unknown"
    probability: float  # that the most probable class is right if the image's class is enrolled
    classes: list[tuple[str, float]]  # the most probable classes, with these probabilities
    margin: float  # log-odds of the most probable class against all others
    nearest: int  # position in `Index.images` of the nearest image of the most probable class

    def as_json(self) -> dict[str, Any]:
        """The answer as `enroll --classify` and `serve` give it in JSON."""
        return {
            "class": printable(self.name),  # JSON is UTF-8; names need not be
            "probability": self.probability,
            "classes": [{"class": printable(name), "probability": p} for name, p in self.classes],
            "margin": self.margin,
        }


def as_json(files: Sequence[str], answers: Sequence[Answer], enrolled: Sequence[str]) -> list[Any]:
    """The answers to files, with the nearest of the `enrolled` images."""
    images = []
    for file, found in zip(files, answers, strict=True):
        nearest = printable(enrolled[found.nearest])
        images.append({"image": printable(file), **found.as_json(), "nearest": nearest})
    return images


def as_rows(
    files: Sequence[str], answers: Sequence[Answer], enrolled: Sequence[str]
) -> list[list[str]]:
    """The answers to files as rows of a table, the first its heading; see `as_json`.

    All answers have the same number of classes, and there is at least one.
    """
    count = len(answers[0].classes)
    columns = [f"{name}_{i}" for i in range(1, count + 1) for name in ("class", "probability")]
    rows = [["image", "answer", *columns, "margin", "nearest"]]
    for file, found in zip(files, answers, strict=True):
        pairs = [text for name, p in found.classes for text in (printable(name), f"{p:.4f}")]
        cells = printable(file), printable(found.name), *pairs, f"{found.margin:.4f}"
        rows.append([*cells, printable(enrolled[found.nearest])])
    return rows
