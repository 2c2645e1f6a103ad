"""The catalogue of a folder: its table, its page as a file and from a server, in a browser; and
what becomes of clicks."""

import csv
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

import dml_jax
from dml_jax.analysis import worth
from dml_jax.analysis.catalogue import Button, Catalogue
from dml_jax.analysis.examined_images import Images, _clusters, sharpness
from dml_jax.commands import catalogue
from dml_jax.data.split import Split
from dml_jax.serving.http_service import Server
from tests.analysis.page import Page
from tests.commands.conftest import Execute
from tests.serving import chromium
from tests.tiny_model import Tiny

KINDS, IMAGES = ("=oak", "elm", "ash"), 6
MISPLACED = {"photos/ash/elm 5.png": "elm", "photos/elm/oak 5.png": "'=oak"}  # and their kinds


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noisy images of three patterns; two are in other folders, one was saved once more, one is
    blurred, and the name of one is not UTF-8."""
    rng = np.random.default_rng(0)
    for kind in KINDS:
        pattern = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((4, 4, 1)))
        for i in range(IMAGES):
            pixels = np.clip(pattern + rng.normal(0, 60, pattern.shape), 0, 255).astype(np.uint8)
            misplaced = {"=oak": "elm", "elm": "ash"} if i == 5 else {}
            folder = tmp_path / "photos" / misplaced.get(kind, kind)
            folder.mkdir(parents=True, exist_ok=True)
            mark = "\udcff" if (kind, i) == ("ash", 1) else ""
            image = Image.fromarray(pixels)
            if (kind, i) == ("ash", 2):
                image = image.filter(ImageFilter.GaussianBlur(1))
            image.save(folder / f"{kind.strip('=')} {i}{mark}.png")
    oak = tmp_path / "photos" / "=oak"
    Image.open(oak / "oak 0.png").save(oak / "again.jpg", quality=90)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.setattr("dml_jax.commands.jax_setup.enable_compilation_cache", lambda: None)
    monkeypatch.chdir(tmp_path)


def table() -> dict[str, dict[str, str]]:
    with Path("catalogue/catalogue.csv").open(newline="") as file:
        return {row["image"]: row for row in csv.DictReader(file)}


def test_a_folder_of_classes(photos: None, execute: Execute) -> None:
    code, out, err = execute(catalogue, "--model=w", "--quiet", "photos")
    assert (code, err) == (0, "")
    assert out == "written: catalogue/catalogue.html and catalogue/catalogue.csv\n"
    found = table()
    assert len(found) == 3 * IMAGES + 1
    copies = {name for name, row in found.items() if row["near_duplicates"]}
    assert copies == {"photos/=oak/oak 0.png", "photos/=oak/again.jpg"}
    clusters: dict[str, set[str]] = {}
    for name, row in found.items():
        kind = Path(name).name.split()[0].replace("again.jpg", "oak")
        clusters.setdefault(row["cluster"], set()).add(kind)
    assert clusters["1"] == {"oak"}  # the largest first
    assert sorted(map(sorted, clusters.values())) == [["ash"], ["elm"], ["oak"]]
    assert {name: row["proposed"] for name, row in found.items() if row["proposed"]} == MISPLACED
    assert {row["probability"] for row in found.values()} == {""}  # too few images
    assert found["photos/elm/oak 5.png"]["class"] == "elm"
    assert r"photos/ash/ash 1\udcff.png" in found
    blurred = min(found, key=lambda name: float(found[name]["sharpness"]))
    assert blurred == "photos/ash/ash 2.png"
    rows = np.load("catalogue/embeddings/embeddings.npy").astype(float)
    gaps = 1 - (rows @ rows.T - 2 * np.eye(len(rows))).max(axis=1)
    stated = [float(row["nearest_distance"]) for row in found.values()]
    np.testing.assert_allclose(stated, gaps, atol=1e-4)

    page = Page(Path("catalogue/catalogue.html").read_text())
    sections = [attrs["id"] for attrs in page.all("section")]
    assert sections == ["labels", "duplicates", "clusters", "blurred", "odd"]
    assert page.all("button") == page.all("script") == []
    assert sorted(proposals(page)) == ["ash → elm", "elm → =oak"]
    links = {attrs["href"] or "" for attrs in page.all("a")}
    files = [Path("catalogue", urllib.parse.unquote(link, errors="surrogateescape"))
             for link in links if link[0] != "#"]  # fmt: skip
    assert all(file.is_file() for file in files)
    assert any("\udcff" in file.name for file in files)
    assert {(attrs["src"] or "")[:5] for attrs in page.all("img")} == {"data:"}


def test_a_folder_without_labels_that_changes(photos: None, execute: Execute) -> None:
    """Embeddings are kept; the numbers of clusters follow from the images."""
    for file in [*Path("photos").glob("*/*")]:
        file.rename(Path("photos", file.name))
    for folder in [*Path("photos").glob("*/")]:
        folder.rmdir()
    code, out, err = execute(catalogue, "--model=w", "--quiet", "photos")
    assert code == 0
    assert err.startswith("without labels: photos: ")
    before = {name: row["cluster"] for name, row in table().items()}
    assert len(set(before.values())) == 3
    assert {row["proposed"] for row in table().values()} == {""}
    Path("photos/ash 0.png").unlink()
    Path("photos/no.png").write_text("no")
    code, out, err = execute(catalogue, "--model=w", "--quiet", "photos")
    assert code == 0
    assert err.splitlines()[-1] == "left out: 1 of 19 images"
    assert "images: 1 dropped, 18 kept" in out
    del before["photos/ash 0.png"]
    assert {name: row["cluster"] for name, row in table().items()} == before
    for file in [*Path("photos").iterdir()][1:]:
        file.unlink()
    error = execute(catalogue, "--model=w", "photos", "--quiet")[2]
    assert "photos: contains one image; give a folder with more" in error


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the catalogue's server, in a thread."""
    servers, ready, address = list[Server](), threading.Event(), list[str]()

    def run(server: Server, sockets: list[object]) -> None:
        servers.append(server)
        host, port = sockets[0].getsockname()  # type: ignore[attr-defined]
        address.append(f"http://{host}:{port}/")
        ready.set()
        super(Server, server).run(sockets)  # type: ignore[arg-type]

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    command = "--model=w", "--quiet", "--serve", "--port=0", "photos"
    thread = threading.Thread(target=lambda: catalogue.execute([*command]))
    thread.start()
    try:
        assert ready.wait(120)
        yield address[0]
    finally:
        servers[0].should_exit = True
        thread.join(60)


def request(url: str, headers: dict[str, str] | None = None, **form: str) -> tuple[int, bytes]:
    """The status and the content, after the redirection that follows a click."""
    body = urllib.parse.urlencode(form).encode() if form else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {})) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def click_first(url: str, tab: str) -> Page:
    """Clicks the first button of a tab: the page that follows, which must be of the same tab."""
    page = Page(request(f"{url}?tab={tab}")[1].decode())
    hidden = {each["name"]: each["value"] for each in page.all("input") if each.get("type") == "hidden"}
    assert hidden["tab"] == tab
    (button, *_) = page.all("button")
    status, content = request(url, {"Origin": url.rstrip("/")}, **hidden, key=button["value"])
    assert status == 200
    return Page(content.decode())


def proposals(page: Page) -> list[str]:
    return [text for text in page.texts if " → " in text]


def test_clicks(photos: None, execute: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    """A doubtful image is moved, and the list sorts itself again; one is removed and restored."""
    with served(monkeypatch) as url:
        before = proposals(Page(request(url)[1].decode()))
        assert len(before) == 2
        assert proposals(click_first(url, "labels")) == before[1:]
        assert click_first(url, "duplicates").all("button") == []
        listed = click_first(url, "changes")
        assert len(listed.all("li")) == 1
        (move,) = (text for text in listed.texts if text.startswith("move "))
        assert move.split(" to ")[1].strip() == before[0].split(" → ")[1]  # the folder
        enlarged = Page(request(f"{url}?image=3&tab=odd")[1].decode())
        sources = [image["src"] for image in enlarged.all("img")]
        assert len(sources) == 13
        for source in sources:
            status, content = request(urllib.parse.urljoin(url, source))
            assert (status, content[:2]) == (200, b"\xff\xd8")
        assert request(url, {"Origin": "http://attacker.example"}, key="undo 1 ")[0] == 403
        assert request(url, {"Host": "attacker.example"}, key="undo 1 ")[0] == 400
        for key in ["delete 99 ", "move 1 ../x", "sell 1 ", "undo 9 ", "keep 1 x", "move x elm", ""]:
            assert request(url, key=key)[0] in (400, 404), key
    kept = Path("catalogue/changes.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in kept] == ["change", "move", "delete", "undo"]
    files = {path.name for path in Path("photos").rglob("*.*")}
    code, out, _ = execute(catalogue, "photos", "--apply=catalogue/changes.csv")
    back = "--apply=catalogue/changes.csv --reverse"
    assert (code, out) == (0, f"moved 1 file; {back} moves them back\n")
    assert {path.name for path in Path("photos").rglob("*.*")} == files
    code, out, _ = execute(catalogue, "--model=w", "--quiet", "photos")
    assert "changes.csv: has been applied, and is now catalogue/changes-1.csv" in out
    assert len([row for row in table().values() if row["proposed"]]) == 1
    again = "--apply=catalogue/changes-1.csv", "--reverse"
    assert execute(catalogue, "photos", *again)[1] == "moved 1 file\n"


@pytest.mark.skipif(not chromium.BROWSER, reason="no chromium is installed")
def test_pages_in_a_browser(photos: None, execute: Execute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They fit a desk and a phone, follow the colour scheme, and load what they show."""
    colours = set()
    with served(monkeypatch) as url, chromium.tab(tmp_path / "profile") as tab:
        for width, scheme in ((1400, "light"), (390, "dark")):
            for query in ("labels", "duplicates", "clusters", "blurred", "odd", "changes", "odd&image=3"):
                tab.show(f"{url}?tab={query}", width, scheme)
                height, wide = tab.value("[document.documentElement.scrollHeight, document.body.scrollWidth]")
                assert (height <= 2000 or "image" in query, wide <= width) == (True, True), query
                tab.until("[...document.images].every(image => image.naturalWidth > 0)")
            colours.add(tab.value("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_equal_images_are_one_cluster() -> None:
    rows = np.full((5, 4), 0.5, np.float32)
    np.testing.assert_array_equal(_clusters(rows), np.zeros(5))


def test_sharpness_by_scipy() -> None:
    from scipy import ndimage

    grey = np.random.default_rng(0).integers(0, 256, (40, 30), np.uint8)
    expected = ndimage.laplace(grey.astype(float), mode="nearest").var()
    assert sharpness(np.repeat(grey[..., None], 3, axis=2)) == pytest.approx(expected, rel=1e-4)


def test_what_an_hour_is_worth() -> None:
    """Corrections improve the means for the other images; classes of one day are named."""
    rng = np.random.default_rng(0)
    right = np.repeat(np.arange(8), 40)
    rows = (0.8 * rng.normal(size=(8, 12))[right] + rng.normal(size=(320, 12))).astype(np.float32)
    labels = right.copy()
    labels[::8] = (right[::8] + 1) % 8
    days = np.where(right == 3, 0, np.arange(320) % 2)
    days[labels == 3] = 0
    none = np.zeros(320, np.int64)
    names = [f"./{label}/{i}.jpg" for i, label in enumerate(labels)]
    images = Images(Path(), names, names, rows, none[:, None], none, none, none, none, days)
    classes = [f"class {i}" for i in range(8)]
    made = Catalogue(images, [classes[i] for i in labels])
    first, second = made.worth
    known = {"session": [f"{day}" for day in days]}
    split = Split(labels, names, lambda i, rng: None, classes, metadata=known)  # type: ignore[arg-type,return-value]
    assert second == worth.of_split(split, rows)[1]
    after = made.after(made.changed(Button("", "move", [0], "class 0")))
    assert after.labels[0] == "class 0" != made.labels[0]
    np.testing.assert_array_equal(after.probability(made.doubts.doubt), made.chances)  # type: ignore[misc]
    count, before, after = map(float, re.findall(r"[\d.]+", first))
    assert 20 < count < 50
    assert before < after
    assert second.startswith("photograph class 3 on another day: all images of 1 class are from one")
