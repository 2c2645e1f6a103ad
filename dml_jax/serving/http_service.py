"""HTTP service of `dml-jax serve`, which answers images in batches."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message

from dml_jax.data import decode
from dml_jax.errors import DataError, printable
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.serving.enrolled_classes import Answer, EnrolledClasses
from dml_jax.serving.page import Page

BODY = 32 << 20  # bytes of a request
CONNECTIONS = 128  # whose requests, of up to `BODY` each, are in memory
BATCH = 16  # images per call of the network, a power of two
ARRIVING, ANSWERING = 0.5, 30  # seconds after SIGTERM in which requests arrive and are answered
Result = tuple[np.ndarray, Answer] | Exception  # an embedding, float32 [D], and its answer


class Serves(Protocol):
    """What a `Server` serves."""

    def routes(self) -> list[Route]:
        """What it answers."""

    def problem(self, text: str, status: int, headers: Mapping[str, str] | None) -> Response:
        """The page that says what is wrong with a form."""


class Service:
    """Answers `POST /` with embeddings or enrolled classes of images up to a size."""

    def __init__(
        self,
        model: EmbeddingModel,
        enrolled: EnrolledClasses | None,
        title: str,
        megapixels: float = 60,
    ):
        self._model, self.page, self._megapixels = model, Page(title, enrolled), megapixels
        self._classify = enrolled or (lambda rows: [{"embedding": row.tolist()} for row in rows])
        self._waiting: list[tuple[np.ndarray, asyncio.Future[Result]]] = []
        self._computing = asyncio.Lock()

    def routes(self) -> list[Route]:
        """What it answers, with its page."""
        return [Route("/", self.post, methods=["POST"]), *self.page.routes()]

    def problem(self, text: str, status: int, headers: Mapping[str, str] | None) -> Response:
        """The page that says what is wrong with a form."""
        return self.page.problem(text, status, headers)

    def compile(self) -> None:
        """Compiles the programs for every batch size."""
        for exponent in range(BATCH.bit_length()):
            self._model.embed_pixels(np.zeros((2**exponent, *self._model.shape, 3), np.uint8))

    def _read(self, file: bytes) -> np.ndarray:
        """The input of the network, uint8 [H, W, 3]; an image of too many pixels is not decoded."""
        with suppress(DataError):  # `read` raises it again, with a name
            width, height = decode.size(file)
            if width * height > self._megapixels * 1e6:
                problem = f"image: {width}x{height} pixels; send one of at most "
                raise HTTPException(413, f"{problem}{self._megapixels:g} megapixels (--megapixels)")
        return self._model.read(file)

    def _compute(self, images: Sequence[np.ndarray]) -> list[Result]:
        try:
            rows = self._model.embed_pixels(np.stack(images))
            bad = [first_bad_row(row[None]) for row in rows]
            good = rows[[problem is None for problem in bad]]
            answers = zip(good, self._classify(good) if len(good) else (), strict=True)
        except Exception as error:  # of this batch only
            return [error] * len(images)
        text = "image: the model's embedding {}; send another image"
        return [DataError(text.format(each[1])) if each else next(answers) for each in bad]

    async def _answer(self, image: np.ndarray) -> tuple[np.ndarray, Answer]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((image, future))
        async with self._computing:  # images that arrive during a batch are the next one
            if not future.done():
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                results = await asyncio.to_thread(self._compute, [image for image, _ in batch])
                for (_, each), result in zip(batch, results, strict=True):
                    each.set_result(result)
        if isinstance(result := future.result(), Exception):
            raise result
        return result

    async def post(self, request: Request) -> Response:
        """Answers a request that contains an image."""
        refuse_other_sites(request)
        file = await _content(request)
        row, answer = await self._answer(await run_in_threadpool(self._read, file))
        if request.query_params.get("embedding") == "1":
            answer |= {"embedding": row.tolist()}
        if "text/html" in request.headers.get("accept", ""):  # the page's form
            return await run_in_threadpool(self.page.answer, file, row, answer)
        return JSONResponse(answer)


def refuse_other_sites(request: Request) -> None:
    """HTTPException if a page of another site sends a request."""
    origin = request.headers.get("origin")
    if origin and origin.partition("://")[2] != request.headers["host"]:
        raise HTTPException(403, "pages of other sites may send nothing to this server")


async def _content(request: Request) -> bytes:
    """The image file in a request: the body or, in a form, the first file."""
    size, more = 0, True

    async def receive() -> Message:
        nonlocal size, more
        message = await request.receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        if size > BODY:
            problem = f"the request is too large; send at most {BODY >> 20} MiB"
            raise HTTPException(413, problem, {"Connection": "close"})
        return message

    limited = Request(request.scope, receive)
    try:
        if not request.headers.get("content-type", "").lower().startswith("multipart/"):
            return await limited.body()
        async with limited.form(max_files=1, max_fields=16) as form:
            for value in form.values():
                if not isinstance(value, str):
                    return await value.read()
        problem = "the form contains no complete file; send one, e.g. curl -F file=@photo.jpg"
        raise HTTPException(400, problem)
    except HTTPException:
        while more:  # most clients do not read the answer before they have sent everything
            more = (await request.receive()).get("more_body", False)
        raise


def _explain(service: Serves, request: Request, error: Exception) -> Response:
    """The answer that says what is wrong: JSON, or the page if a browser sent its form."""
    status, text = 500, "internal error; see the output of the server"
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    elif isinstance(error, DataError):
        status = 413 if isinstance(error.__cause__, decode.TooManyPixels) else 400
        text = printable(str(error))
    headers = getattr(error, "headers", None)
    if request.method == "POST" and "text/html" in request.headers.get("accept", ""):
        return service.problem(text, status, headers)
    return JSONResponse({"error": text}, status, headers)


class Server(uvicorn.Server):
    """Serves clients that call it by one of `hosts`.

    Other host names are refused: a page of another site could let its name resolve to this server.
    """

    def __init__(self, service: Serves, hosts: Sequence[str]):
        async def health(request: Request) -> Response:
            return JSONResponse({"status": "ok"})

        trusted = Middleware(TrustedHostMiddleware, hosts, www_redirect=False)
        explain = partial(_explain, service)
        handlers = dict.fromkeys((HTTPException, DataError, ClientDisconnect, Exception), explain)
        routes = [*service.routes(), Route("/health", health)]
        app = Starlette(False, routes, [trusted], handlers)
        config = uvicorn.Config(app, http="httptools", log_config=None, log_level="error")
        config.limit_concurrency, config.timeout_graceful_shutdown = CONNECTIONS, ANSWERING
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops, after requests that are on their way have arrived."""
        await asyncio.sleep(ARRIVING)
        await super().shutdown(sockets)
