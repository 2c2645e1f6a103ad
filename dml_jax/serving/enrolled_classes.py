"""Answers of the server from an index of `dml-jax enroll`."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dml_jax.data.files import stamp
from dml_jax.errors import UserError, printable
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.inference.index import UNKNOWN, Index

Answer = dict[str, Any]


class EnrolledClasses:
    """Answers with the classes of an index, which is read again when it is replaced.

    A new one that cannot be used is reported on stderr once, and the previous index is kept.
    `limit` holds arguments of `Index.classify`, `top` is the number of classes in an answer.
    """

    def __init__(
        self, model: EmbeddingModel, path: Path, limit: dict[str, float | None], top: int = 3
    ):
        self._model, self._path, self._limit, self._top = model, path, limit, top
        self._version, self._index = stamp(path), self._load()
        self._counts: Counter[str] = Counter()

    def _load(self) -> Index:
        index = Index.load(self._model, self._path)
        index.expect(**self._limit)  # fits the classifier
        return index

    @property
    def index(self) -> Index:
        """The index, the newest that can be used."""
        if (version := stamp(self._path)) != self._version and self._path.exists():
            self._version = version
            try:
                self._index = self._load()
            except UserError as error:
                text = f"warning: {printable(str(error))}; the index before it is kept"
                print(text, file=sys.stderr, flush=True)
        return self._index

    def __call__(self, rows: np.ndarray, *, counted: bool = True) -> list[Answer]:
        """The answers to embeddings [B, D], with the most probable "classes"; they enter the
        statistics if they are `counted`."""
        answers = self.index.classify(rows, top=self._top, **self._limit)
        if counted:
            self._counts.update(answer.name for answer in answers)
        return [answer.as_json() for answer in answers]

    def statistics(self, request: Request) -> Response:
        """The numbers of answers by class, and the observed and the expected rate of "unknown"."""
        total, unknown, index = self._counts.total(), self._counts[UNKNOWN], self.index
        expected = index.expect(**self._limit).unknown
        classes = {printable(k): n for k, n in self._counts.most_common() if k != UNKNOWN}
        content = {
            "answers": total,
            "classes": classes,
            "unknown": unknown,
            "unknown_rate": unknown / total if total else None,
            # If there are no strangers among the images.
            "expected_unknown_rate": [None if np.isnan(share) else share for share in expected],
            "index": {"images": len(index.images), "classes": len(index.classes)},
        }
        return JSONResponse(content)
