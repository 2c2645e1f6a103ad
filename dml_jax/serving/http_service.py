"""HTTP service of `dml-jax serve` and `dml-jax explore`: answers images in batches.

uvicorn and Starlette limit connections, sizes and host names. Encryption, authentication and deadlines for slow
connections are left to a reverse proxy.
"""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import python_multipart  # noqa: F401  Starlette imports it only when a form arrives
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dml_jax.data.prepare.sources import stamp
from dml_jax.errors import DataError, UserError, printable
from dml_jax.evaluation import open_set
from dml_jax.inference.index import UNKNOWN, Index

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

SECONDS = 30.0  # from the headers of a request to its answer
BODY = 32 << 20  # bytes
CONNECTIONS = 128  # together with `BODY`, limits the memory for images that are being received
BATCH = 16  # images per call of the network, a power of two
CLASSES = 5  # in an answer
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

Answer = dict[str, Any]
Answers = Callable[[np.ndarray], Sequence[Answer | DataError]]  # embeddings float32 [B, D] -> B answers


class Service:
    """Answers `POST /`. A batch consists of the images that arrived while the previous one was computed.

    `answers` computes the answers from the embeddings, which are otherwise the answers.
    """

    def __init__(self, model: "EmbeddingModel", answers: Answers | None = None):
        self._model = model
        self.statistics: Any = getattr(answers, "statistics", None)
        self._answers = answers or (lambda rows: [{"embedding": row.tolist()} for row in rows])
        self._waiting: asyncio.Queue[tuple[np.ndarray, asyncio.Future[tuple[np.ndarray, Answer]]]] = asyncio.Queue()

    def compile(self) -> None:
        """Compiles the programs for every batch size."""
        for exponent in range(BATCH.bit_length()):
            self._model.embed_pixels(np.zeros((2**exponent, *self._model.shape, 3), np.uint8))

    def _compute(self, images: list[np.ndarray]) -> list[tuple[np.ndarray, Answer] | DataError]:
        rows = self._model.embed_pixels(np.stack(images))
        answers = zip(rows, self._answers(rows), strict=True)
        return [answer if isinstance(answer, DataError) else (row, answer) for row, answer in answers]

    async def run(self) -> None:
        """Computes batches until cancelled."""
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            batch = [(image, future) for image, future in batch if not future.done()]  # drops requests timed out
            if not batch:
                continue
            try:
                results: Sequence[Any] = await asyncio.to_thread(self._compute, [image for image, _ in batch])
            except Exception as error:  # fails this batch only
                results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    async def post(self, request: Request) -> Response:
        """Answers a request that contains an image."""
        try:
            async with asyncio.timeout(SECONDS):
                image = await asyncio.to_thread(self._model.read, await _content(request))
                future: asyncio.Future[tuple[np.ndarray, Answer]] = asyncio.get_running_loop().create_future()
                self._waiting.put_nowait((image, future))
                row, answer = await future
        except TimeoutError:
            raise HTTPException(503, f"no answer within {SECONDS:g} seconds; try again later") from None
        except ClientDisconnect:
            return Response()  # nobody receives it
        if not np.isfinite(row).all():
            raise HTTPException(400, "image: the model's embedding is not finite; send another image")
        if request.query_params.get("embedding") == "1":
            answer = answer | {"embedding": row.tolist()}
        return JSONResponse(answer)


async def _content(request: Request) -> bytes:
    """The image file in a request: the body or, in a form, the first file."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/"):
        return await request.body()
    async with request.form(max_files=1, max_fields=16) as form:
        for value in form.values():
            if isinstance(value, UploadFile):
                return await value.read()
    raise HTTPException(400, "the form contains no complete file; send one, e.g. curl -F file=@photo.jpg")


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _explain(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, DataError):
        return JSONResponse({"error": printable(str(error))}, 400)
    return JSONResponse({"error": "internal error; see the output of the server"}, 500)


def server(service: Service, routes: Sequence[Route] = (), hosts: Sequence[str] = LOCAL_NAMES) -> uvicorn.Server:
    """A server of `POST /`, `GET /health`, `GET /statistics` and further routes.

    It refuses requests for other host names: a page of another site could otherwise let its own name resolve to the
    address of this server.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run())
        yield
        task.cancel()

    async def statistics(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(service.statistics))

    own = [Route("/", service.post, methods=["POST"]), Route("/health", _health)]
    own += [Route("/statistics", statistics)] if service.statistics else []
    app = Starlette(
        routes=[*own, *routes],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        exception_handlers=dict.fromkeys((HTTPException, DataError, Exception), _explain),
        lifespan=lifespan,
        max_body_size=BODY,
    )
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # silences a warning for every malformed form
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="on", log_level="error", access_log=False, proxy_headers=False,
        limit_concurrency=CONNECTIONS, h11_max_incomplete_event_size=1 << 14, timeout_keep_alive=5,
        timeout_graceful_shutdown=int(SECONDS),
    )  # fmt: skip
    return uvicorn.Server(config)


class EnrolledClasses:
    """Answers with the classes of an index file; a replaced file is read again.

    A new file that cannot be used is reported on stderr once, and the index before it is kept. `decision` holds the
    arguments of `Index.classify`.
    """

    def __init__(self, model: "EmbeddingModel", path: Path, decision: dict[str, Any]):
        self._model, self._path, self._decision = model, path, decision
        self._version = stamp(path)
        self._index = self._load()
        self._counts: Counter[str] = Counter()

    def statistics(self) -> Answer:
        """The answers since the start by class, and the rates to compare: unknown now, and as promised."""
        total, unknown = self._counts.total(), self._counts[UNKNOWN]
        point = self._index.expect(self._decision["false_accept_rate"])
        return {
            "answers": total,
            "classes": {printable(name): n for name, n in self._counts.most_common() if name != UNKNOWN},
            "unknown": unknown,
            "unknown_rate": unknown / total if total else None,
            # Without strangers; as many of these as the images hold are unknown in addition.
            "promised_unknown_rate": [None if np.isnan(share) else share for share in point.unknown],
            "index": {"images": len(self._index.images), "classes": len(self._index.classes)},
        }

    def _load(self) -> Index:
        index = Index.load(self._model, self._path)
        index.nearest(index.embeddings[:1], **self._decision)  # measures the threshold, if it must
        return index

    def _reload(self) -> None:
        version = stamp(self._path)
        if version == self._version or not self._path.exists():
            return
        self._version = version
        try:
            self._index = self._load()
        except UserError as error:
            print(f"warning: {printable(str(error))}; the index before it is kept", file=sys.stderr, flush=True)

    def __call__(self, rows: np.ndarray) -> list[Answer | DataError]:
        """Answers with "class", "score", "threshold", "cosine" and "classes", the most similar ones with cosines.

        An image whose embedding cannot be compared has an error instead, which does not concern the others.
        """
        self._reload()
        bad = [open_set.first_bad_row(row[None]) for row in rows]
        good = np.array([problem is None for problem in bad])
        answers = iter(self._classified(rows[good]) if good.any() else ())
        return [
            DataError(f"image: the model's embedding {problem[1]}; send another image") if problem else next(answers)
            for problem in bad
        ]

    def _classified(self, rows: np.ndarray) -> list[Answer]:
        index = self._index
        names, margins, _ = index.nearest(rows, **self._decision)
        self._counts.update(names)
        threshold = self._decision.get("threshold")
        if threshold is None:
            threshold = index.threshold(self._decision["false_accept_rate"])
        positions, cosines = index.best(rows, CLASSES)
        return [
            {
                "class": printable(name),  # JSON is UTF-8; names need not be
                "score": float(margin),
                "threshold": float(threshold),
                "cosine": float(values[0]),
                "classes": [
                    {"class": printable(index.classes[label]), "cosine": float(value)}
                    for label, value in zip(labels, values, strict=True)
                ],
            }
            for name, margin, labels, values in zip(names, margins, index.labels[positions], cosines, strict=True)
        ]
