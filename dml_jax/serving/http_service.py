"""HTTP service of `dml-jax serve` and `dml-jax explore`: answers images in batches.

uvicorn and Starlette limit connections, sizes and host names. Images of more than `PIXELS` are
refused before decoding, whose memory `decode.Room` limits. Slow clients, encryption and
authentication are left to a reverse proxy.
"""

import asyncio
import logging
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dml_jax.data import arrays, decode
from dml_jax.data.files import stamp
from dml_jax.data.pipeline import usable_cores
from dml_jax.errors import ConfigError, DataError, UserError, printable, require
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.inference.index import UNKNOWN, Index

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

SECONDS = 30  # to answer the requests of open connections after SIGTERM
BODY = 32 << 20  # bytes
PIXELS = 25_000_000  # per image, somewhat more than most cameras have
# Images that need more bytes to decode, or JPEG files with more scans, are decoded one at a time.
LARGE, SCANS = decode.MEMORY // 4, 20
CONNECTIONS, BACKLOG = 128, 2048  # accepted, and waiting to be accepted
BATCH = 16  # images per call of the network, a power of two
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

Answer = dict[str, Any]
Answered = tuple[np.ndarray, Answer]  # an embedding, float32 [D], and its answer
# Embeddings float32 [B, D] -> B answers.
Answers = Callable[[np.ndarray], Sequence[Answer | DataError]]


class Service:
    """Answers `POST /`; the images that arrived during a batch are the next one.

    `answers` computes the answers from the embeddings, which are otherwise the answers.
    """

    def __init__(self, model: "EmbeddingModel", answers: Answers | None = None):
        problem = (
            f"--model: takes {arrays.described(model.shape)}; only models of images are served"
        )
        require(arrays.is_image(model.shape), problem)
        self._model = model
        self.statistics: Any = getattr(answers, "statistics", None)
        self._answers = answers or (lambda rows: [{"embedding": row.tolist()} for row in rows])
        # Separate threads: neither the network nor small images wait for large ones.
        self._readers, self._large = ThreadPoolExecutor(usable_cores()), ThreadPoolExecutor(1)
        self._waiting = asyncio.Queue[tuple[np.ndarray, asyncio.Future[Answered]]]()

    def compile(self) -> None:
        """Compiles the programs for every batch size."""
        for exponent in range(BATCH.bit_length()):
            self._model.embed_pixels(np.zeros((2**exponent, *self._model.shape, 3), np.uint8))

    def _compute(self, images: list[np.ndarray]) -> list[Answered | DataError]:
        rows = self._model.embed_pixels(np.stack(images))
        both = zip(rows, self._answers(rows), strict=True)
        return [answer if isinstance(answer, DataError) else (row, answer) for row, answer in both]

    def _reader(self, file: bytes) -> ThreadPoolExecutor:
        """The threads that decode an image, by its header; refuses one of too many pixels."""
        too_large = f"image: {{}}; send one of at most {PIXELS:,} pixels"
        try:
            width, height, memory = decode.header(file)
        except decode.TooManyPixels as error:
            raise HTTPException(413, too_large.format(error)) from None
        except DataError:  # decoding raises it again, with a name
            return self._readers
        if width * height > PIXELS:
            raise HTTPException(413, too_large.format(f"{width}x{height} pixels"))
        slow = memory > LARGE or file.count(b"\xff\xda") > SCANS
        return self._large if slow else self._readers

    async def run(self) -> None:
        """Computes batches until cancelled."""
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            images, results = [image for image, _ in batch], list[Any]()
            try:
                results = await asyncio.to_thread(self._compute, images)
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
            file = await _content(request)
        except ClientDisconnect:
            return Response()  # nobody receives it
        loop = asyncio.get_running_loop()
        reader = await loop.run_in_executor(self._readers, self._reader, file)
        image = await loop.run_in_executor(reader, self._model.read, file)
        future: asyncio.Future[Answered] = loop.create_future()
        self._waiting.put_nowait((image, future))
        row, answer = await future
        if not np.isfinite(row).all():
            problem = "image: the model's embedding is not finite; send another image"
            raise HTTPException(400, problem)
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
    problem = "the form contains no complete file; send one, e.g. curl -F file=@photo.jpg"
    raise HTTPException(400, problem)


class _Bodies:
    """The application, with a limit on the bytes of a request."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > BODY:
                problem = f"the request is too large; send at most {BODY >> 20} MiB"
                raise HTTPException(413, problem, {"Connection": "close"})
            return message

        await self._app(scope, counted, send)


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _explain(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, DataError):
        return JSONResponse({"error": printable(str(error))}, 400)
    if isinstance(error, MemoryError):
        what = "not enough memory for this image; try again later, or send a smaller one"
        return JSONResponse({"error": what}, 503)
    return JSONResponse({"error": "internal error; see the output of the server"}, 500)


def server(
    service: Service, routes: Sequence[Route] = (), hosts: Sequence[str] = LOCAL_NAMES
) -> uvicorn.Server:
    """A server of `POST /`, `GET /health`, `GET /statistics` and further routes.

    It refuses requests for other host names than `hosts`: a page of another site could otherwise
    make that site's name resolve to the address of this server.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run())
        yield
        task.cancel()

    async def statistics(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(service.statistics))

    answering = [Route("/", service.post, methods=["POST"]), Route("/health", _health)]
    if service.statistics:
        answering.append(Route("/statistics", statistics))
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    explained = (HTTPException, DataError, MemoryError, Exception)
    app = Starlette(
        routes=[*answering, *routes],
        middleware=[trusted, Middleware(_Bodies)],
        exception_handlers=dict.fromkeys(explained, _explain),
        lifespan=lifespan,
    )
    # It would warn about every malformed form.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=SECONDS,
    )
    return uvicorn.Server(config)


def serve(
    service: Service,
    listener: socket.socket,
    routes: Sequence[Route] = (),
    hosts: Sequence[str] = LOCAL_NAMES,
) -> None:
    """Compiles the programs, prints the address and serves; arguments as of `server`."""
    service.compile()
    host, port = listener.getsockname()[:2]
    print(f"http://{_in_url(host)}:{port}/", flush=True)
    server(service, routes, hosts).run([listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; ConfigError if the port or the host is not available."""
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"--port={port}: must be in 0..65535; 0 is any free port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server((host, port), family=found[0][0], backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        where = f"--host={host} --port={port}"
        raise ConfigError(f"{where}: cannot listen there ({why}); give others") from None


def names_of(host: str) -> set[str]:
    """The names and addresses of this machine by which clients may call a server at `host`."""
    machine = socket.gethostname()
    names = {*LOCAL_NAMES, _in_url(host), machine}
    with suppress(OSError):
        names |= {_in_url(str(entry[4][0])) for entry in socket.getaddrinfo(machine, None)}
    return names


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class EnrolledClasses:
    """Answers with the classes of an index file; a replaced file is read again.

    A new file that cannot be used is reported on stderr once, and the previous index is kept.
    `limit` holds arguments of `Index.classify`, `top` is the number of classes in an answer.
    """

    def __init__(
        self, model: "EmbeddingModel", path: Path, limit: dict[str, float | None], top: int = 3
    ):
        self._model, self._path, self._limit, self._top = model, path, limit, top
        self._version = stamp(path)
        self._index = self._load()
        self._counts: Counter[str] = Counter()

    def statistics(self) -> Answer:
        """The numbers of answers by class, and the observed and the expected rate of "unknown"."""
        total, unknown = self._counts.total(), self._counts[UNKNOWN]
        point = self._index.expect(**self._limit)
        counts = self._counts.most_common()
        expected = [None if np.isnan(share) else share for share in point.unknown]
        return {
            "answers": total,
            "classes": {printable(name): n for name, n in counts if name != UNKNOWN},
            "unknown": unknown,
            "unknown_rate": unknown / total if total else None,
            "expected_unknown_rate": expected,  # if there are no strangers among the images
            "index": {"images": len(self._index.images), "classes": len(self._index.classes)},
        }

    def _load(self) -> Index:
        index = Index.load(self._model, self._path)
        index.expect(**self._limit)  # fits the classifier
        return index

    def _reload(self) -> None:
        version = stamp(self._path)
        if version == self._version or not self._path.exists():
            return
        self._version = version
        try:
            self._index = self._load()
        except UserError as error:
            text = f"warning: {printable(str(error))}; the index before it is kept"
            print(text, file=sys.stderr, flush=True)

    def __call__(self, rows: np.ndarray) -> list[Answer | DataError]:
        """Answers with "class", "probability", "classes", the most probable ones, and "margin"; or
        with an error for an image whose embedding cannot be compared."""
        self._reload()
        bad = [first_bad_row(row[None]) for row in rows]
        good = np.array([problem is None for problem in bad])
        answers = iter(self._classified(rows[good]) if good.any() else ())
        text = "image: the model's embedding {}; send another image"
        return [DataError(text.format(found[1])) if found else next(answers) for found in bad]

    def _classified(self, rows: np.ndarray) -> list[Answer]:
        found = self._index.classify(rows, top=self._top, **self._limit)
        self._counts.update(answer.name for answer in found)
        return [answer.as_json() for answer in found]
