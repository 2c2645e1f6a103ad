"""The explorer: what its server answers, to whom, and its command."""

import io
import json
import logging.config
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dml_jax import files
from dml_jax.commands import explore
from dml_jax.config import resolve
from dml_jax.serving import http_service
from dml_jax.serving.explorer import PAGE, SHOWN, Explorer, Part
from tests.analysis.runs import Run
from tests.analysis.test_page import Page
from tests.commands.conftest import Fails
from tests.serving.test_http_service import Colours, ask, enrolled, picture, serving
from tests.train.experiments import values

COUNT = 150


def check_command(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Explores a run that `test_main.py` trains, with the model's answer for a photograph; SIGTERM
    ends it."""
    # By which uvicorn would close all handlers; absl's takes the captured stderr with it.
    monkeypatch.setattr(logging.config, "dictConfig", lambda values: None)
    listeners: list[socket.socket] = []
    listen = http_service.listen
    monkeypatch.setattr(
        http_service, "listen", lambda *where: listeners.append(listen(*where)) or listeners[0]
    )

    def visit() -> tuple[Any, Any]:
        deadline = time.monotonic() + 120
        while not listeners and time.monotonic() < deadline:
            time.sleep(0.05)
        port = listeners[0].getsockname()[1]  # requests wait until the server accepts them
        try:
            _, content = fetch(port, "images/query/large/5")
            return ask(port, None, path="neighbors/5")[1], ask(port, content)[1]
        finally:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(visit)
        with pytest.raises(SystemExit, match="143"):
            explore.execute([f"--model={run}", "--port=0"])
    signal.signal(signal.SIGTERM, before)
    listed, photograph = answers.result()
    embeddings = np.load(run / "embeddings" / "test" / "embeddings.npy")
    cosines = embeddings @ embeddings[5]
    cosines[5] = -2
    assert listed["neighbors"][0]["cosine"] == pytest.approx(cosines.max(), abs=1e-5)
    assert photograph["neighbors"][0]["cosine"] > 0.9  # the image itself, but for JPEG


NAMES = ("<script>alert(1)</script>", "green & blue", "caf\udce9")


def colours(count: int, seed: int, gallery: Run | None = None) -> Run:
    """Images whose embeddings are those of a colour, as in `Colours`."""
    rows = np.random.default_rng(seed).random((count, 3))
    return Run(
        rows, np.arange(count) % 3, NAMES, gallery, ids=[f"{i}<b>.png" for i in range(count)]
    )


def part(run: Run) -> Part:
    return Part(run.split("test"), run.embeddings("test"))


def explored(queries: Run, gallery: Run | None = None) -> dict[str, Any]:
    made = Explorer("a <title>", part(queries), part(gallery) if gallery else None)
    return {"answers": made.answers, "routes": made.routes()}


@pytest.fixture(scope="module")
def run() -> Run:
    return colours(COUNT, 0)


@pytest.fixture(scope="module")
def port(run: Run) -> Iterator[int]:
    with serving(Colours(), **explored(run)) as port:
        yield port


def fetch(port: int, path: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}")
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_page(port: int) -> None:
    """Loads nothing from elsewhere; names of classes are text."""
    status, content = fetch(port, "")
    assert status == 200
    shown = Page(content.decode())
    assert len(shown.all("script")) == 1
    assert [attrs for _, attrs in shown.tags if "src" in attrs] == []
    assert any("a <title>" in text for text in shown.texts)
    assert any(f"{NAMES[0]} (50)" in text for text in shown.texts)
    (policy,) = (attrs["content"] or "" for attrs in shown.all("meta") if "http-equiv" in attrs)
    assert "connect-src 'self'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]


@pytest.mark.parametrize("separate", [False, True])
def test_neighbours_are_the_nearest(separate: bool, run: Run) -> None:
    """Against brute force; without the image itself, unless there is a gallery."""
    gallery = colours(40, 1) if separate else None
    queries = colours(COUNT, 0, gallery)
    with serving(Colours(), **explored(queries, gallery)) as port:
        status, found = ask(port, None, path="neighbors/7")
        assert status == 200
        assert found["query"] == {
            "part": "query",
            "index": 7,
            "name": "7<b>.png",
            "class": NAMES[1],
        }
        cosines = (gallery or queries).rows @ queries.rows[7]
        if not separate:
            cosines[7] = -2
        expected = np.argsort(-cosines)[:SHOWN]
        assert [near["index"] for near in found["neighbors"]] == expected.tolist()
        assert [near["cosine"] for near in found["neighbors"]] == pytest.approx(
            cosines[expected], abs=1e-6
        )
        assert [near["same"] for near in found["neighbors"]] == (expected % 3 == 1).tolist()
        assert {near["link"] for near in found["neighbors"]} == {not separate}


def test_a_photograph(port: int, run: Run) -> None:
    """Its neighbours by the model's embedding; its class is unknown."""
    status, found = ask(port, picture(colour=(200, 60, 20)))
    assert status == 200
    row = np.array([201.0, 61.0, 21.0])
    expected = np.argsort(-run.rows @ (row / np.linalg.norm(row)))[:SHOWN]
    assert [near["index"] for near in found["neighbors"]] == expected.tolist()
    assert all("same" not in near for near in found["neighbors"])


def test_enrolled_classes(run: Run, tmp_path: Path) -> None:
    """Photographs and images get the answers that `dml-jax serve` gives, beside the neighbours."""
    model = Colours()
    classify = enrolled(model, tmp_path / "i.npz", -0.5, red=(255, 0, 0), green=(0, 255, 0))
    with serving(model, classify) as port:
        wanted = ask(port, picture(colour=(250, 9, 9)))[1]
    made = Explorer("title", part(run), classify=classify)
    with serving(model, made.answers, routes=made.routes()) as port:
        found = ask(port, picture(colour=(250, 9, 9)))[1]
        listed = ask(port, None, path="neighbors/7")[1]
    assert len(found.pop("neighbors")) == SHOWN
    assert found == wanted
    assert found["class"] == "red"
    assert listed["classes"] == classify(part(run).embeddings[7:8])[0]["classes"]


def test_lists(port: int, run: Run) -> None:
    wrong = []
    for i in range(COUNT):
        cosines = run.rows @ run.rows[i]
        cosines[i] = -2
        if run.labels[np.argmax(cosines)] != run.labels[i]:
            wrong.append(i)

    def listed(query: str) -> list[int]:
        _, found = ask(port, None, path=f"list?{query}")
        assert len(found["images"]) == min(PAGE, found["total"])
        return [image["index"] for image in found["images"]]

    assert listed("") == list(range(PAGE))
    assert listed("class=2") == list(range(2, COUNT, 3))
    assert listed("wrong=1&class=1") == [i for i in wrong if i % 3 == 1]
    _, found = ask(port, None, path="list?start=120")
    assert ([image["index"] for image in found["images"]], found["total"]) == (
        list(range(120, COUNT)),
        COUNT,
    )
    assert ask(port, None, path="list?start=x") == (400, {"error": "start must be a whole number"})
    assert ask(port, None, path="list?start=-5&class=9")[1]["total"] == 0


def test_images(port: int) -> None:
    status, content = fetch(port, "images/query/small/9")
    assert status == 200
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "JPEG"
        assert image.size == (4, 5)
        assert np.abs(np.asarray(image).astype(int) - 9).max() <= 2
    assert fetch(port, "images/gallery/large/9")[0] == 200


@pytest.mark.parametrize(
    "path", ["images/query/small/150", "images/query/small/..%2f..%2fpasswd", "neighbors/150"]
)
def test_only_images_by_index(port: int, path: str) -> None:
    status, content = fetch(port, path)
    assert status == 404
    assert "error" in json.loads(content)


def test_invalid_input(tmp_path: Path, fails: Fails) -> None:
    from dml_jax.train.records import (
        workdir,
    )  # imports absl, whose handler takes the captured stderr with it

    config = resolve(values(steps=1) | {"data": {"name": "folder", "path": "photos/"}})
    facts = workdir.provenance(config, "x", ["a", "b"], 4, (8, 8))
    files.write_json(tmp_path / "config.json", facts)
    wanted = (
        "data.path=photos/: the data of the run are not there; give their directory with "
        "--config.data.path="
    )
    assert fails(explore, f"--model={tmp_path}").startswith(wanted)
    assert fails(explore, "--model=x", "--data=x", "--index=none.npz").startswith(
        "--index=none.npz: there is no such file; enroll classes first"
    )
    assert fails(explore, "--model=x", "--host=0.0.0.0").startswith(
        "--host=0.0.0.0: there is no such option"
    )
