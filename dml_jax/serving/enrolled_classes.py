"""The classes of an index file for the server, which follows changes of the file."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.errors import UserError, printable
from dml_jax.evaluation.open_set import FALSE_ACCEPT_RATE
from dml_jax.inference.index import Embedder, Index
from dml_jax.serving.batched_answers import Answer

BEST = 5  # classes in an answer


class EnrolledClasses:
    """Classifies embeddings with an index file; reads it again when it was replaced.

    A new file that cannot be used is reported on stderr once, and the index before it is kept.

    Args:
      model: embedded the enrolled images.
      path: index file.
      decision: arguments of `Index.classify`.

    Raises:
      DataError, CheckpointError: the index cannot be used.
    """

    def __init__(self, model: Embedder, path: Path, decision: dict[str, Any]):
        self._model, self._path, self._decision = model, path, decision
        self._version = self._stat()
        self._index = Index.load(model, path)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _reload(self, rows: np.ndarray) -> None:
        version = self._stat()
        if version in (self._version, None):
            return
        self._version = version
        try:
            fresh = Index.load(self._model, self._path)
            fresh.nearest(rows[:1], **self._decision)  # measures its threshold, if it must
        except UserError as error:
            print(f"warning: {printable(str(error))}; the index before it is kept", file=sys.stderr, flush=True)
            return
        self._index = fresh

    def __call__(self, rows: np.ndarray) -> list[Answer]:
        """Embeddings float32 [N, D] -> N answers: "class", "score", "threshold", below which it is unknown, "cosine",
        "classes", the best with cosines, and "pictures", the nearest image of each as a JPEG file, empty if the index
        has none."""
        self._reload(rows)
        index = self._index
        names, scores, _ = index.nearest(rows, **self._decision)
        threshold = self._decision.get("threshold")
        if threshold is None:
            rate = self._decision.get("false_accept_rate", FALSE_ACCEPT_RATE)
            threshold = index.expect(rate, self._decision.get("decide")).threshold
        positions, cosines = index.best(rows, BEST)
        # JSON must be UTF-8; class names need not be.
        labels = [[printable(index.classes[label]) for label in row] for row in index.labels[positions]]
        files = [[index.thumbnails[i] for i in row] for row in positions.tolist()]
        return [
            {
                "class": printable(name),
                "score": float(score),
                "threshold": float(threshold),
                "cosine": float(values[0]),
                "classes": [
                    {"class": label, "cosine": float(value)} for label, value in zip(best, values, strict=True)
                ],
                "pictures": pictures,
            }
            for name, score, best, values, pictures in zip(names, scores, labels, cosines, files, strict=True)
        ]
