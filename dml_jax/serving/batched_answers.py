"""Batched inference for the server: images that arrive together pass through the network in one batch."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax.errors import DataError

if TYPE_CHECKING:
    from dml_jax.inference.model import Model

Answer = dict[str, Any]
Classify = Callable[[np.ndarray], Sequence[Answer]]


class Answers:
    """Embeddings and classes of images, computed one batch at a time.

    A batch consists of the images that arrived while the previous one was computed.

    Args:
      model: embeds the images; its `embed_pixels` pads batches to 1, 2, 4, … images, so that few are compiled.
      classify: embeddings [B, D] -> B answers, e.g. `EnrolledClasses`; None for embeddings only.
      batch: maximum number of images in a batch, a power of two.
      waiting: maximum number of queued images.
    """

    def __init__(self, model: "Model", classify: Classify | None = None, *, batch: int, waiting: int):
        self._model, self._classify, self._batch = model, classify, batch
        self._waiting: asyncio.Queue[tuple[np.ndarray, asyncio.Future[Answer]]] = asyncio.Queue(waiting)

    def compile(self) -> None:
        """Compiles the programs for every batch size."""
        for exponent in range(self._batch.bit_length()):
            self._compute([np.zeros((*self._model.shape, 3), np.uint8)] * 2**exponent)

    def _compute(self, images: list[np.ndarray]) -> list[Answer | DataError]:
        embeddings = self._model.embed_pixels(np.stack(images))
        finite = np.isfinite(embeddings).all(axis=1)
        found: Iterator[Answer] = ({"embedding": row.tolist()} for row in embeddings[finite])
        if self._classify and finite.any():
            classified = zip(found, self._classify(embeddings[finite]), strict=True)
            found = (answer | classes for answer, classes in classified)
        error = DataError("image: the model's embedding is not finite; send another image")
        return [next(found) if good else error for good in finite]

    async def of(self, image: np.ndarray) -> Answer:
        """The answer for an image from `Model.read`: "embedding", a list of D numbers; what classifying adds.

        Raises:
          asyncio.QueueFull: too many images are waiting.
          DataError: the embedding is not finite.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((image, future))
        return await future

    async def run(self) -> None:
        """Computes batches until cancelled."""
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < self._batch and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            batch = [(image, future) for image, future in batch if not future.done()]  # drop cancelled requests
            if not batch:
                continue
            answers: Sequence[Answer | Exception]
            try:
                answers = await asyncio.to_thread(self._compute, [image for image, _ in batch])
            except Exception as error:  # fails this batch only
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
