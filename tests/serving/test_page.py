"""The page of the server, over HTTP."""

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_jax.inference.index import Index
from dml_jax.serving import page
from dml_jax.serving.enrolled_classes import EnrolledClasses
from tests.analysis.page import Page
from tests.colours import row_of
from tests.serving.servers import Served, ask, form, picture, serving

CLASSES = ("<script>alert(1)</script>", "green & blue", "'caf\udce9")
BROWSER = {"Accept": "text/html,application/xhtml+xml"}
COUNT = 45


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Index]]:
    """A server of images of random colours in three classes, one of whose files is gone."""
    folder, colours = tmp_path_factory.mktemp("served"), np.random.default_rng(0)
    model, index = Served(), Index(Served())  # type: ignore[arg-type]
    files = [folder / f"{i}<b>.png" for i in range(COUNT)]
    for file in files:
        file.write_bytes(picture((30, 700), tuple(colours.integers(0, 256, 3).tolist())))
    index.add({name: files[label::3] for label, name in enumerate(CLASSES)})
    index.save(folder / "index")
    Path(index.images[7]).unlink()
    enrolled = EnrolledClasses(model, folder / "index", {})  # type: ignore[arg-type]
    with serving(model, enrolled) as port:
        yield port, index


def fetch(port: int, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body, BROWSER | headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def shown(port: int, path: str, body: bytes | None = None, **headers: str) -> Page:
    """A page, which must have no script and load only images of its server."""
    status, content = fetch(port, path, body, **headers)
    assert status == 200
    found = Page(content.decode())
    assert found.all("script") == []
    (policy,) = (attrs["content"] for attrs in found.all("meta") if "http-equiv" in attrs)
    assert policy == "default-src 'none'; img-src data: 'self'; style-src 'unsafe-inline'"
    assert "a <title>" in found.texts
    return found


def tiles(found: Page) -> list[int]:
    numbers = [(attrs["href"] or "").removeprefix("?image=") for attrs in found.all("a")]
    sources = {attrs["src"] for attrs in found.all("img")}
    assert {f"images/{number}" for number in numbers} <= sources
    return list(map(int, numbers))


def nearest(index: Index, row: np.ndarray) -> list[int]:
    return sorted(range(COUNT), key=lambda i: -float(index.embeddings[i] @ row))


def test_start(served: tuple[int, Index]) -> None:
    """One image of each class, or those of the class that is asked for."""
    port, index = served
    found = shown(port, "")
    assert tiles(found) == [0, 15, 30]
    names = [index.classes[0], index.classes[1], r"'caf\udce9"]
    assert [text for text in found.texts if text in names] == names * 2  # to choose, and tiles
    assert tiles(shown(port, "?class=green+%26+blue")) == list(range(15, 30))
    assert tiles(shown(port, "?class=none")) == []


def test_photograph(served: tuple[int, Index]) -> None:
    """The answer in the form of the page, with the nearest images by brute force."""
    port, index = served
    body, headers = form("file", picture(colour=(200, 60, 20)))
    found = shown(port, "", body, **headers)
    row = row_of(np.array([200, 60, 20]))
    assert tiles(found) == nearest(index, row)[: page.NEAREST]
    answer = ask(port, body, headers)[1]
    texts = " ".join(found.texts)
    assert f"Answer: {answer['class']}" in texts
    for each in answer["classes"]:
        assert f"{each['class']} {each['probability']:.1%}" in texts
    assert f"{index.embeddings[tiles(found)[0]] @ row:.3f}" in found.texts
    assert ask(port, None, path="statistics")[1]["answers"] == 2


def test_enrolled_image(served: tuple[int, Index]) -> None:
    """Its neighbours, without itself; it does not enter the statistics."""
    port, index = served
    before = ask(port, None, path="statistics")
    found = shown(port, "?image=16")
    assert tiles(found) == [i for i in nearest(index, index.embeddings[16]) if i != 16][:24]
    assert f"Answer: {index.classify(index.embeddings[16:17])[0].name}" in found.texts
    assert ask(port, None, path="statistics") == before


def test_images(served: tuple[int, Index]) -> None:
    port, index = served
    status, content = fetch(port, "images/8")
    with Image.open(io.BytesIO(content)) as image, Image.open(index.images[8]) as original:
        assert (status, image.format, image.size) == (200, "JPEG", (14, 320))
        colour = np.asarray(original)[0, 0].astype(int)
        assert np.abs(np.asarray(image).mean(axis=(0, 1)) - colour).max() < 4
    for path in ("images/7", "images/45", "images/..%2f..%2fpasswd", "?image=45", "?image=-1"):
        status, content = fetch(port, path)
        assert (status, list(json.loads(content))) == (404, ["error"])


def test_without_index() -> None:
    with serving(Served()) as port:
        assert shown(port, "").all("select") == []
        texts = shown(port, "", picture(colour=(255, 255, 255))).texts
        assert "[0.5773, 0.5773, 0.5773, 0.0037]" in texts
        assert fetch(port, "images/0")[0] == 404
