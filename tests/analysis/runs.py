"""A stand-in for a trained run: embeddings of images of one colour each."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.console import Console
from dml_jax.data.split import Split
from dml_jax.methods import Hooks


class Run(AnalysedModel):
    """A run with a test split.

    Args:
      rows: [N, D], embeddings of any length.
      labels: int [N].
      names: of the classes.
      gallery: whose split the queries search; None for the split itself.
      first: grey level of the first image; the others follow.
      ids: names of the images; default: their numbers.
      distance: of the method.
      sessions: of the images.
    """

    def __init__(
        self,
        rows: np.ndarray,
        labels: Any,
        names: Sequence[str],
        gallery: "Run | None" = None,
        *,
        first: int = 0,
        ids: Sequence[str] = (),
        distance: str = "cosine",
        sessions: Sequence[str] = (),
    ):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True) if distance == "cosine" else 1
        self.rows = (rows / lengths).astype(np.float32)
        config = SimpleNamespace(data=SimpleNamespace(session="session" if sessions else ""))
        method = SimpleNamespace(distance=distance, hooks=Hooks())
        self.model: Any = SimpleNamespace(method=method, config=config)
        self.labels, self.console = np.asarray(labels, np.int64), Console(quiet=True)
        read = lambda i, rng: np.full((5, 4, 3), (first + i) % 256, np.uint8)  # noqa: E731
        ids = ids or [str(i) for i in range(len(rows))]
        metadata = {"session": sessions} if sessions else {}
        self.splits = {"test": Split(self.labels, ids, read, names, metadata=metadata)}
        self.known = {"test": self.rows}
        if gallery:
            self.splits["gallery"], self.known["gallery"] = gallery.splits["test"], gallery.rows
