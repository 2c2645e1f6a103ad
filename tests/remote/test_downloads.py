"""Downloads from a local server that breaks off, moves files and changes them."""

import hashlib
import http.server
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensorflow_datasets

from dml_jax.commands import cli, prepare
from dml_jax.data import store
from dml_jax.data.formats import cub, omniglot, sop
from dml_jax.errors import DataError
from dml_jax.remote import downloads
from tests.data import layouts

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """What is served by path, how, and which paths were asked for.

    Attributes:
      files: content by path.
      breaks: path -> bytes of an answer after which the connection is closed.
      moved: path -> new path.
      failures: statuses of the answers to the next requests; 0 for none.
      asked: the path of each request.
    """

    def __init__(self) -> None:
        self.address = ""
        self.files: dict[str, bytes] = {}
        self.breaks: dict[str, int] = {}
        self.moved: dict[str, str] = {}
        self.failures: list[int] = []
        self.asked: list[str] = []


@pytest.fixture
def server() -> Iterator[Server]:
    state, stopped = Server(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            if state.failures:
                if status := state.failures.pop():
                    self.send_error(status)
                else:
                    stopped.wait(30)
                return
            if self.path in state.moved:
                self.send_response(302)
                self.send_header("Location", state.moved[self.path])
                self.end_headers()
                return
            if self.path not in state.files:
                self.send_error(404)
                return
            content = state.files[self.path]
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if self.path.endswith("html") else "application/gzip")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: state.breaks.get(self.path)])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        state.address = f"http://127.0.0.1:{running.server_port}"
        yield state
        stopped.set()
        running.shutdown()
        thread.join()


def fetch(
    server: Server, target: Path, size: int | None = len(CONTENT), sha256: str = DIGEST, path: str = "/x"
) -> None:
    downloads.fetch(downloads.Source(server.address + path, size, sha256), target, "ask the owner", lambda _: None)


def test_an_interrupted_download_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.files["/x"], server.breaks["/x"] = CONTENT, 1000
    with pytest.raises(
        DataError,
        match=rf"^{server.address}/x: cannot be downloaded \(ended after 1000 of 256000 bytes\); try again, or ask the",
    ):
        fetch(server, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    server.breaks.clear()
    fetch(server, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "why"), [(0, "timed out"), (503, "HTTP Error 503: Service Unavailable")])
def test_a_server_that_does_not_answer(
    status: int, why: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "SECONDS", 0.2)
    server.files["/x"], server.failures = CONTENT, [status]
    with pytest.raises(DataError, match=rf"\({why}\); try again, or ask"):
        fetch(server, tmp_path / "x")


def test_bytes_of_another_file_are_noticed(server: Server, tmp_path: Path) -> None:
    server.files["/x"] = b"y" * len(CONTENT)
    wrong = hashlib.sha256(server.files["/x"]).hexdigest()
    with pytest.raises(DataError, match=rf"\(its SHA-256 is {wrong} instead of {DIGEST}\); try again"):
        fetch(server, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    server.files["/x"] = CONTENT
    fetch(server, tmp_path / "x", None, DIGEST[:8])
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/gone", r"\(HTTP Error 404: Not Found\); try again, or ask the owner"),
        ("/moved", r"\(text/html of 256000 bytes: the file has moved or changed\); try again, or ask the owner"),
        (
            "/longer",
            r"\(application/gzip of 256001 bytes: the file has moved or changed\); try again, or ask the owner",
        ),
    ],
)
def test_moved_and_changed_files(server: Server, tmp_path: Path, path: str, message: str) -> None:
    server.files |= {"/page.html": CONTENT, "/longer": CONTENT + b"!"}
    server.moved["/moved"] = "/page.html"
    with pytest.raises(DataError, match=rf"^{server.address}{path}: cannot be downloaded {message}$"):
        fetch(server, tmp_path / "x", path=path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(server: Server, tmp_path: Path, full_disk: Any) -> None:
    server.files["/x"], target = CONTENT, tmp_path / "x"
    with full_disk(100_000), pytest.raises(OSError, match="File too large") as caught:
        fetch(server, target)
    assert caught.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (cub, "url_checksums/caltech_birds2011.txt"),
        (omniglot, "url_checksums/omniglot.txt"),
        (sop, "datasets/stanford_online_products/checksums.tsv"),
    ],
)
def test_lengths_and_digests_are_those_of_tensorflow_datasets(module: ModuleType, table: str) -> None:
    lines = Path(tensorflow_datasets.__path__[0], table).read_text().splitlines()
    known = {tuple(line.split("\t")[1:]) for line in lines}
    for source in module.RECIPE.downloads:
        assert (str(source.size), source.sha256, source.name) in known


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    sys.argv = ["prepare", *arguments]
    code = cli.exit_code(lambda: prepare.execute(sys.argv[1:]))
    return code, *capsys.readouterr()


def test_prepare_downloads(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    content = layouts.cub(tmp_path).read_bytes()
    server.files["/CUB.tgz?download=1"] = content
    server.breaks["/CUB.tgz?download=1"] = len(content) // 2
    source = downloads.Source(f"{server.address}/CUB.tgz?download=1", len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(cub, "RECIPE", cub.RECIPE._replace(downloads=(source,)))
    command = ("--name=cub", "--download", "--subset")
    code, out, err = run(capsys, *command)
    assert code == 2
    assert re.fullmatch(
        rf"error: {server.address}/CUB\.tgz\?download=1: cannot be downloaded \(ended after {len(content) // 2} of "
        rf"{len(content)} bytes\); try again, or download it in a browser, "
        r"from https://www\.vision\.caltech\.edu/\S*, and give it as --source\n",
        err,
    )
    assert out.startswith(f"terms: {cub.RECIPE.terms}\nowners: https://www.vision.caltech.edu/")
    assert not (tmp_path / "data").exists() or list((tmp_path / "data").iterdir()) == []
    server.breaks.clear()
    code, out, err = run(capsys, *command)
    assert (code, err) == (0, "")
    assert "train: 9 images of 3 classes" in out
    store.verify(tmp_path / "data" / "cub")
    requests = len(server.asked)
    assert run(capsys, *command)[0] == 0
    assert run(capsys, *command, "--output=again", "--short_side=16")[::2] == (0, "")  # the archive was kept
    assert len(server.asked) == requests
    (tmp_path / "cache" / "dml_jax" / "downloads" / "cub" / "CUB.tgz").write_bytes(b"damaged")
    assert run(capsys, *command, "--output=third")[0] == 0
    assert len(server.asked) == requests + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name=inshop"], r"--download: inshop cannot be downloaded: .*DeepFashion.*; get it .* give it as --source"),
        (["--name=folder"], "--download: folder cannot be downloaded: it is your own data; give it as --source"),
        (["--name=cub", "--source=x"], "--source: is not used with --download"),
        ([], "--name: missing"),
    ],
)
def test_what_cannot_be_downloaded(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "--download", *arguments)
    assert code == 2
    assert re.match(rf"error: {message}", err)
    assert list(tmp_path.iterdir()) == []
