"""The answers of the server: batches, wrong requests, other sites, its end, and an index that is replaced."""

import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax.data import decode
from dml_jax.inference.index import Index
from dml_jax.serving import http_service
from dml_jax.serving.enrolled_classes import EnrolledClasses
from dml_jax.serving.http_service import BODY, Service
from tests.colours import row_of
from tests.serving.servers import Served, ask, form, picture, running, serving

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def batches_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_service, "BATCH", 4)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(Served(), None, "127.0.0.1 localhost Model.example") as port:
        yield port


@pytest.fixture
def silent(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[int]:
    """A server that must print and log nothing."""
    with serving(Served()) as port:
        yield port
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


def exchange(port: int, *parts: bytes) -> bytes:
    """What the server sends after raw bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        received = b""
        with suppress(ConnectionError):  # answered and closed before everything was sent
            for part in parts:
                client.sendall(part)
                time.sleep(0.01)
        with suppress(ConnectionError):
            while more := client.recv(1 << 16):
                received += more
        return received


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_images_are_embedded_as_by_the_library(port: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (33, 50, 3), dtype=np.uint8)
    data = decode.encode_png(pixels)
    for body, headers in ((data, {}), form("file", data), form("image", data)):
        status, answer = ask(port, body, headers)
        assert (status, list(answer)) == (200, ["embedding"])
        np.testing.assert_allclose(answer["embedding"], Served().embed([pixels])[0], atol=1e-6)
    assert ask(port, None, path="health") == (200, {"status": "ok"})


# Starlette leaves the part of a form that is cut off to the garbage collector; it is in memory, not in a file.
@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning")
def test_wrong_requests(silent: int) -> None:
    """A sentence in JSON or, for the form of a browser, in a page without an answer. Too large
    bodies are read to their end, since most clients read no answer before they have sent all."""
    whole, headers = form("file", picture())
    kind = headers["Content-Type"]
    damaged = picture((300, 300))[:-60]
    large = "the request is too large; send at most 32 MiB"
    for sent, content_type, status, words in (
        (b"", "", 400, "image: not an image"),
        (damaged, "", 400, "image: damaged"),
        (form("file", b"")[0], kind, 400, "image: not an image"),
        (form("file", damaged)[0], kind, 400, "image: damaged"),
        (whole[:-20], kind, 400, "the form contains no complete file"),
        (b"", kind, 400, "the form contains no complete file"),
        (whole, "multipart/form-data", 400, "Missing boundary"),
        (whole[:-4] + whole[3:], kind, 400, "Too many files"),
        (bytes(BODY + 1), "", 413, large),
        (whole + bytes(3 * BODY), kind, 413, large),
    ):
        asked = {"Content-Type": content_type} if content_type else {}
        code, answer = ask(silent, sent, asked)
        assert (code, words in answer["error"]) == (status, True), answer
        request = urllib.request.Request(f"http://127.0.0.1:{silent}/", sent, asked)
        request.add_header("Accept", "text/html")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        with caught.value as error:
            page = error.read().decode()
        assert (error.code, words in page, "<form" in page) == (status, True, True)
        assert "Answer" not in page
        assert "<img" not in page
    assert ask(silent, b"", path="health") == (405, {"error": "Method Not Allowed"})
    assert ask(silent, b"", path="image") == (404, {"error": "Not Found"})


def test_clients_that_hang_up(silent: int) -> None:
    port = silent
    post, file = POST, picture()
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhe"
    for sent in (b"", post, post + b"Content-Length: %d\r\n\r\n" % len(file) + file[:40], chunked):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(sent)
    with socket.create_connection(("127.0.0.1", port)) as client:  # hangs up before the answer
        client.sendall(post + b"Content-Length: %d\r\n\r\n" % len(file) + file)
    assert ask(port, file)[0] == 200
    # A proxy and the server could otherwise disagree where a request ends.
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert exchange(port, post + lengths).startswith(b"HTTP/1.1 400 ")


def test_images_that_arrive_together_share_a_batch() -> None:
    model = Served()
    colours = [(30 * i, 255 - 30 * i, i % 2 * 200) for i in range(7)]
    with serving(model) as port, ThreadPoolExecutor(8) as clients:
        model.free.clear()
        first = clients.submit(ask, port, picture(colour=colours[0]))
        until(lambda: model.batches == [1])
        others = [clients.submit(ask, port, picture(colour=colour)) for colour in colours[1:]]
        until(lambda: model.waiting() == len(others))
        model.free.set()
        answers = [client.result(60) for client in (first, *others)]
    for (status, answer), colour in zip(answers, colours, strict=True):
        assert status == 200
        np.testing.assert_allclose(answer["embedding"], row_of(np.array(colour)), atol=1e-6)
    assert max(model.batches) == 4
    model.batches = []
    Service(model, None, "").compile()  # type: ignore[arg-type]
    assert model.batches == [1, 2, 4]


def test_more_connections_than_the_service_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are refused; the server then goes on."""
    model = Served()
    monkeypatch.setattr(http_service, "CONNECTIONS", 4)
    with serving(model) as port, ThreadPoolExecutor(3) as clients:
        model.free.clear()
        pending = [clients.submit(ask, port, picture()) for _ in range(3)]
        until(lambda: sum(model.batches) + model.waiting() == 3)
        assert exchange(port, HEALTH).startswith(b"HTTP/1.1 503 ")
        model.free.set()
        assert [client.result(60)[0] for client in pending] == [200] * 3
        until(lambda: exchange(port, HEALTH).startswith(b"HTTP/1.1 200 "))


def test_too_many_pixels_are_refused_by_their_header() -> None:
    """The pixels themselves are not there."""
    with running(Served(), megapixels=4e-4) as (port, _):
        assert ask(port, picture())[0] == 200
        for size in ((20, 21), (12_000, 9_000), (20_000, 19_000)):
            # Pillow warns of the second and refuses the third.
            header = b"P6\n%d %d\n255\n" % size
            for sent, headers in ((header, {}), form("file", header)):
                status, answer = ask(port, sent, headers)
                assert (status, " pixels" in answer["error"]) == (413, True), answer


def test_a_failure_of_the_network_ends_its_batch_only(caplog: pytest.LogCaptureFixture) -> None:
    model = Served()
    with serving(model) as port:
        model.embed_pixels = lambda pixels: 1 / 0
        assert ask(port, picture()) == (500, {"error": "internal error; see the output of the server"})
        del model.embed_pixels
        assert ask(port, picture())[0] == 200
    assert "ZeroDivisionError" in caplog.text


def enroll(model: Served, path: Path, reject: float | None, **colours: Any) -> EnrolledClasses:
    """A saved index with an image of each colour, as the server reads it."""
    index = Index(model)
    index.add({name: [np.full((20, 20, 3), colour, np.uint8)] for name, colour in colours.items()})
    index.save(path)
    return EnrolledClasses(model, path, {"reject": reject})


def test_a_bad_embedding_does_not_concern_other_images_of_the_batch(tmp_path: Path) -> None:
    # JSON is UTF-8, the name of the folder was not.
    enrolled = enroll(Served(), tmp_path / "i", None, **{"caf\udce9": 200})
    rows = Served().embed([np.full((20, 20, 3), 200, np.uint8)] * 3)
    rows[0, 0], rows[2] = np.inf, 0
    model = Served()
    model.embed_pixels = lambda pixels: rows[: len(pixels)]  # type: ignore[method-assign]
    service = Service(model, enrolled, "")  # type: ignore[arg-type]
    first, second, third = service._compute([np.zeros((16, 16, 3), np.uint8)] * 3)
    assert str(first) == "image: the model's embedding is not finite; send another image"
    assert second[1]["class"] == r"caf\udce9"  # type: ignore[index]
    assert str(third) == "image: the model's embedding has length 0; send another image"
    model.embed_pixels = lambda pixels: rows[:1].repeat(len(pixels), 0)  # type: ignore[method-assign]
    with serving(model, enrolled) as port:
        assert ask(port, picture()) == (400, {"error": str(first)})


def test_names_and_pages_of_others_are_refused(port: int, tmp_path: Path) -> None:
    """A page of another site could give its name the address of this server and read the answers;
    and a browser sends its images without asking, so that they would be counted."""
    file, model = picture(), Served()
    for host, status in (
        ("127.0.0.1:8000", 200),
        ("model.example", 200),
        ("attacker.example", 400),  # a name that its owner can give to any machine
        ("[::1].evil", 400),
    ):
        head = f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(file)}\r\n"
        answer = exchange(port, f"{head}Connection: close\r\n\r\n".encode() + file)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert (b"embedding" in answer) == (status == 200)
    with serving(model, enroll(model, tmp_path / "i", None, red=(255, 0, 0))) as own:
        others = "http://attacker.example", "null", f"http://127.0.0.1:{own + 1}"
        for origin in (*others, f"http://127.0.0.1:{own}"):
            status = 403 if origin in others else 200
            for body, headers in ((file, {}), form("file", file)):
                assert ask(own, body, headers | {"Origin": origin})[0] == status
        assert ask(own, None, path="statistics")[1]["answers"] == 2


def test_requests_on_their_way_at_the_end_are_answered() -> None:
    sent = POST + b"Content-Length: %d\r\n\r\n" % len(picture()) + picture()
    with running(Served()) as (port, server), ThreadPoolExecutor(40) as clients:
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        server.should_exit = True
        time.sleep(0.2)  # uvicorn looks every 0.1 s
        connections += [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]

        def answer(client: socket.socket) -> bytes:
            with client:
                client.sendall(sent)
                return client.recv(12)

        assert list(clients.map(answer, connections)) == [b"HTTP/1.1 200"] * 40


def test_classes_of_an_index(tmp_path: Path) -> None:
    """The answers of the library, with the embedding if it is asked for, and their statistics."""
    model = Served()
    enrolled = enroll(model, tmp_path / "i", 0.2, red=(255, 0, 0), green=(0, 255, 0))
    asked = {"red": (250, 9, 9), "green": (9, 250, 9), "unknown": (255, 255, 255)}
    with serving(model, enrolled) as port:
        for name, colour in asked.items():
            status, answer = ask(port, picture(colour=colour))
            rows = model.embed([np.full((20, 20, 3), colour, np.uint8)])
            (expected,) = enrolled.index.classify(rows, reject=0.2)
            assert (status, answer, answer["class"]) == (200, expected.as_json(), name)
            whole = ask(port, picture(colour=colour), path="?embedding=1")[1]
            np.testing.assert_allclose(whole.pop("embedding"), rows[0], atol=1e-6)
            assert whole == answer
        status, counts = ask(port, None, path="statistics")
    assert (status, counts["answers"], counts["classes"]) == (200, 6, {"red": 2, "green": 2})
    assert (counts["unknown"], counts["unknown_rate"]) == (2, 1 / 3)
    assert counts["index"] == {"images": 2, "classes": 2}
    assert len(counts["expected_unknown_rate"]) == 3
    with serving(model) as port:
        assert ask(port, None, path="statistics")[0] == 404


def test_a_replaced_index_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = Served(), tmp_path / "i"
    classify = enroll(model, path, 0.2, red=(255, 0, 0))
    rows = model.embed_pixels(np.full((1, 20, 20, 3), (0, 255, 0), np.uint8))
    assert classify(rows)[0]["class"] == "unknown"
    shutil.copytree(path, tmp_path / "cut")
    (tmp_path / "cut" / "classifier.npz").write_bytes(b"")
    shutil.rmtree(path)
    (tmp_path / "cut").rename(path)
    for _ in range(2):
        assert [found["class"] for found in classify(rows)[0]["classes"]] == ["red"]
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: {path}/classifier.npz: has changed")
    assert warning.endswith("enroll again; the index before it is kept\n")
    assert warning.count("\n") == 1
    shutil.rmtree(path)
    assert [found["class"] for found in classify(rows)[0]["classes"]] == ["red"]
    enroll(model, path, 0.2, green=(0, 255, 0))
    assert classify(rows)[0]["class"] == "green"
    assert capsys.readouterr().err == ""
