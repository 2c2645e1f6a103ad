"""HTTP server of `dml-jax serve` and `dml-jax explore`.

No client can block the others, whatever it sends or withholds: every request has a deadline; the size of each body and
of all together is limited; and beyond `Limits.connections`, the connection that has waited longest for its client is
closed.
"""

import asyncio
import base64
import ipaddress
import itertools
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import h11
import numpy as np
import python_multipart  # noqa: F401  needed by MultiPartParser
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dml_jax.errors import DataError
from dml_jax.serving.batched_answers import Answer, Answers

ON_REQUEST = ("embedding", "pictures")  # of an image that is classified


@dataclass(frozen=True)
class Limits:
    """Resource limits for clients."""

    seconds: float = 30.0  # from the headers of a request to its answer
    body: int = 32 << 20  # bytes per request
    memory: int = 1 << 30  # bytes of all bodies being received or decoded
    connections: int = 768  # open connections; well below 1,024, the usual limit of open files


class Service:
    """The handler of `POST /`.

    Args:
      answer: computes the answer for an image from `read`.
      read: decodes and transforms an image file, see `Model.read`.
    """

    def __init__(
        self, answer: Callable[[np.ndarray], Awaitable[Answer]], read: Callable[[bytes], np.ndarray], limits: Limits
    ):
        self._answer, self._read, self._limits = answer, read, limits
        self._held = 0  # bytes of all bodies being received or decoded
        self._decoders = ThreadPoolExecutor(min(os.cpu_count() or 1, 8))

    async def post(self, request: Request) -> Response:
        """Answers a request that contains an image."""
        late = HTTPException(408, f"the body did not arrive within {self._limits.seconds:g} seconds")
        try:
            async with asyncio.timeout(self._limits.seconds):
                async with self._file(request) as file:
                    late = HTTPException(503, "too busy to answer in time; try again later")
                    image = await asyncio.get_running_loop().run_in_executor(self._decoders, self._read, file)
                answer = await self._answer(image)
                if "class" in answer:
                    left_out = {name for name in ON_REQUEST if request.query_params.get(name) != "1"}
                    answer = {name: value for name, value in answer.items() if name not in left_out}
                    if "pictures" in answer:
                        answer["pictures"] = [base64.b64encode(each).decode() for each in answer["pictures"]]
                return JSONResponse(answer)
        except TimeoutError:
            raise late from None
        except asyncio.QueueFull:
            raise HTTPException(503, "too many images are waiting; try again later") from None
        except DataError as error:
            raise HTTPException(400, str(error)) from None
        except ClientDisconnect:
            return Response()  # nobody receives it

    @asynccontextmanager
    async def _file(self, request: Request) -> AsyncIterator[bytes]:
        """The image file in a request: the body or, in a form, the first file."""
        held = 0

        async def chunks() -> AsyncGenerator[bytes, None]:
            nonlocal held
            async for chunk in self._chunks(request):
                held += len(chunk)
                self._held += len(chunk)
                if self._held > self._limits.memory:
                    raise HTTPException(503, "too many images are being received; try again later")
                yield chunk

        try:
            if request.headers.get("content-type", "").lower().startswith("multipart/"):
                yield await self._first_file(request, chunks())
            else:
                yield b"".join([chunk async for chunk in chunks()])
        finally:
            self._held -= held

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        """Yields the body of a request."""
        # Most clients read no answer before they have sent everything, so up to the limit again is read and dropped;
        # clients that ask before they send ("expect") are answered at once.
        limit, size = self._limits.body, 0
        too_large = HTTPException(413, f"the body has more than {limit} bytes; send a smaller image")
        if int(request.headers.get("content-length", 0)) > (limit if "expect" in request.headers else 2 * limit):
            raise too_large
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                yield chunk
            elif size > 2 * limit:
                break
        if size > limit:
            raise too_large

    async def _first_file(self, request: Request, chunks: AsyncGenerator[bytes, None]) -> bytes:
        parser = MultiPartParser(request.headers, chunks, max_files=1, max_fields=16)
        parser.spool_max_size = self._limits.body  # keeps files in memory
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise HTTPException(400, f"the form cannot be read: {error.message}") from None
        for _, value in form.multi_items():
            if isinstance(value, UploadFile):
                with value.file as file:
                    return file.read()
        raise HTTPException(400, "the form contains no complete file; send one, e.g. curl -F file=@photo.jpg")


async def health(request: Request) -> Response:
    """The handler of `GET /health`."""
    return JSONResponse({"status": "ok"})


async def explain(request: Request, error: Exception) -> Response:
    """The response to an error; it closes the connection, because the body may be unread."""
    status, text, headers = 500, "internal error; see the output of the server", {}
    if isinstance(error, HTTPException):
        status, text, headers = error.status_code, error.detail, dict(error.headers or {})
    if text in ("Not Found", "Method Not Allowed"):  # Starlette's own
        text = f"{text}; send an image with POST /, or GET /health"
    return JSONResponse({"error": text}, status, headers | {"connection": "close"})


class Guard:
    """Refuses requests that other sites' pages make a browser send, except links to a page of this server.

    Such a page could let its own name resolve to this server's address (DNS rebinding), so requests for unknown host
    names are refused, too; an IP address cannot be rebound. `hosts` are the known names.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]):
        self._app = app
        self._hosts = {host.lower() for host in hosts if not _is_address(host)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (refusal := self._refusal(scope["method"], Headers(scope=scope))):
            status, text = refusal
            app = JSONResponse({"error": text}, status, {"connection": "close"})
        await app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not (_is_address(name := _without_port(host)) or name in {"localhost", *self._hosts}):
            return 400, (
                f"Host: {host[:100]} is not a name of this server; use its address, or give the name to dml-jax serve "
                "as --host_name"
            )
        link = method == "GET" and headers.get("sec-fetch-dest") == "document"
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin is not None:
            site = origin.partition("://")[2].lower()
            elsewhere |= site != (host or "").lower() and site not in self._hosts
        return (403, "requests from pages of other sites are refused") if elsewhere and not link else None


def _without_port(host: str) -> str:
    """The name or address in a Host header, in lower case; empty if it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "") if "@" not in host else ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Connection(H11Protocol):
    """A connection with a deadline for every request; uvicorn has one for idle connections only."""

    limits: ClassVar[Limits]
    turns = itertools.count()  # orders connections by the time since which they could send a request

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.turn = next(self.turns)
        self._deadline = self._new_deadline()
        if len(self.connections) > self.limits.connections:
            waiting = [each for each in self.connections if isinstance(each, Connection) and each.is_waiting()]
            min(waiting, key=lambda each: each.turn).transport.abort()

    def is_waiting(self) -> bool:
        """Whether the connection is open and waits for the client to send, or to read its answers."""
        sending = self.cycle is None or self.cycle.more_body or self.cycle.response_complete
        ahead = self.flow.write_paused or bool(self.conn.trailing_data[0])
        return (sending or ahead) and not self.transport.is_closing()

    def _new_deadline(self) -> asyncio.TimerHandle:
        # Twice the limit, because `Service.post` counts from the end of the headers.
        return self.loop.call_later(2 * self.limits.seconds, self.transport.abort)

    def on_response_complete(self) -> None:
        self.turn = next(self.turns)
        self._deadline.cancel()
        self._deadline = self._new_deadline()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Closes the connection after the answer, or at once if the request is incomplete."""
        if self.cycle is not None and self.cycle.more_body:
            self.transport.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answers input that is not HTTP, unless an answer has been sent already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-type", "application/json"), ("connection", "close")]
            for event in (
                h11.Response(status_code=400, headers=headers),
                h11.Data(b'{"error":"not a valid HTTP request"}'),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def server(
    answers: Answers,
    read: Callable[[bytes], np.ndarray],
    limits: Limits,
    *,
    complete: Callable[[Answer], Answer] | None = None,
    routes: Sequence[Route] = (),
    hosts: Sequence[str] = (),
) -> uvicorn.Server:
    """Builds a server of `POST /` and `GET /health`.

    Args:
      complete: maps an answer to the one that is sent; runs in a thread.
      hosts: names of this server besides localhost, see `Guard`.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(answers.run())
        yield
        task.cancel()

    async def answer(image: np.ndarray) -> Answer:
        found = await answers.of(image)
        return await asyncio.to_thread(complete, found) if complete else found

    post = Route("/", Service(answer, read, limits).post, methods=["POST"])
    app = Starlette(
        routes=[post, Route("/health", health), *routes],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={HTTPException: explain, Exception: explain},
        lifespan=lifespan,
    )
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # silences a warning for every malformed form
    connection = type("LimitedConnection", (Connection,), {"limits": limits})
    config = uvicorn.Config(
        app, http=connection, ws="none", lifespan="on", log_level="error", access_log=False, proxy_headers=False
    )
    return uvicorn.Server(config)
