"""A server in a thread of the tests, with the mean colour as its model, and its clients."""

import io
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dml_jax.config import Data
from dml_jax.data import decode, transforms
from dml_jax.errors import DataError
from dml_jax.serving.enrolled_classes import EnrolledClasses
from dml_jax.serving.http_service import Server, Service
from tests.colours import Colours, row_of

transform = transforms.evaluation(Data(name="folder", crop="centre", resize=20, image_size=16))


class Served(Colours):
    """`Colours` that reads files as models do, notes its batches, and can be made to wait."""

    shape = (16, 16)

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.free = threading.Event()  # cleared to make the network wait
        self.free.set()
        self.waiting: Callable[[], int] = lambda: 0  # number of images that wait for the network

    def read(self, file: bytes | np.ndarray) -> np.ndarray:
        try:
            return transform(decode.rgb(file) if isinstance(file, bytes) else file)
        except DataError as error:
            raise DataError(f"image: {error}") from error

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        self.batches.append(len(pixels))
        assert self.free.wait(60)
        return np.stack([row_of(image.reshape(-1, 3).mean(axis=0)) for image in pixels])

    def embed(self, images: list[Any]) -> np.ndarray:
        read = (each.read_bytes() if isinstance(each, Path) else each for each in images)
        return self.embed_pixels(np.stack([self.read(image) for image in read]))


@contextmanager
def running(
    model: Served, enrolled: EnrolledClasses | None = None, hosts: str = "127.0.0.1 localhost", megapixels: float = 60
) -> Iterator[tuple[int, Server]]:
    """A server in a thread, and its port."""
    service = Service(model, enrolled, "a <title>", megapixels)  # type: ignore[arg-type]
    service.compile()
    model.batches.clear()
    model.waiting = lambda: len(service._waiting)
    server = Server(service, hosts.split())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1], server
        finally:
            model.free.set()
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def serving(*arguments: Any) -> Iterator[int]:
    with running(*arguments) as (port, _):
        yield port


def picture(size: tuple[int, int] = (20, 20), colour: Any = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def ask(port: int, body: Any, headers: dict[str, str] | None = None, path: str = "") -> tuple[int, Any]:
    """The status and the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def form(name: str, data: bytes) -> tuple[bytes, dict[str, str]]:
    """A form with a text field and a file, as curl sends it, and its header."""
    head = b'--x\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n--x\r\nContent-Disposition: form-data; '
    body = head + f'name="{name}"; filename="a.jpg"\r\n\r\n'.encode() + data + b"\r\n--x--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=x"}
