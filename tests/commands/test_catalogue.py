"""The catalogue of a folder: near-duplicates, clusters, votes of neighbours, its page and table."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dml_jax
from dml_jax.analysis.catalogue import _clusters
from dml_jax.commands import catalogue
from tests.analysis.test_page import Page
from tests.commands.conftest import Execute
from tests.tiny_model import Tiny

KINDS, IMAGES = ("=oak", "elm", "ash"), 6
MISPLACED = {"photos/ash/elm 5.png": "elm", "photos/elm/oak 5.png": "'=oak"}  # and their kinds


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noisy images of three patterns; two are in other folders, one was saved once more, and the
    name of one is not UTF-8."""
    rng = np.random.default_rng(0)
    for kind in KINDS:
        pattern = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((4, 4, 1)))
        for i in range(IMAGES):
            pixels = np.clip(pattern + rng.normal(0, 60, pattern.shape), 0, 255).astype(np.uint8)
            misplaced = {"=oak": "elm", "elm": "ash"} if i == 5 else {}
            folder = tmp_path / "photos" / misplaced.get(kind, kind)
            folder.mkdir(parents=True, exist_ok=True)
            mark = "\udcff" if (kind, i) == ("ash", 1) else ""
            Image.fromarray(pixels).save(folder / f"{kind.strip('=')} {i}{mark}.png")
    oak = tmp_path / "photos" / "=oak"
    Image.open(oak / "oak 0.png").save(oak / "again.jpg", quality=90)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.setattr("dml_jax.commands.jax_setup.enable_compilation_cache", lambda: None)
    monkeypatch.chdir(tmp_path)


def table() -> dict[str, dict[str, str]]:
    with Path("catalogue/catalogue.csv").open(newline="") as file:
        return {row["image"]: row for row in csv.DictReader(file)}


def expected_votes(names: list[str], rows: np.ndarray, copies: set[str]) -> dict[str, float]:
    """The share of the votes of the winner, by loops in float64."""
    found = {}
    for i, name in enumerate(names):
        cosines = rows.astype(np.float64) @ rows[i]
        cosines[i] = -2
        votes: dict[str, float] = {}
        for j in np.argsort(-cosines)[:10].tolist():
            if not {name, names[j]} <= copies:
                label = Path(names[j]).parent.name
                votes[label] = votes.get(label, 0) + np.exp(cosines[j] / 0.05)
        found[name] = max(votes.values()) / sum(votes.values())
    return found


def test_a_folder_of_classes(photos: None, execute: Execute) -> None:
    code, out, err = execute(catalogue, "--model=w", "--quiet", "photos")
    assert (code, err) == (0, "")
    assert out == "written: catalogue/catalogue.html and catalogue/catalogue.csv\n"
    found = table()
    assert len(found) == 3 * IMAGES + 1
    copies = {name for name, row in found.items() if row["near_duplicates"]}
    assert copies == {"photos/=oak/oak 0.png", "photos/=oak/again.jpg"}
    assert len({found[name]["near_duplicates"] for name in copies}) == 1
    clusters: dict[str, set[str]] = {}
    for name, row in found.items():
        kind = Path(name).name.split()[0].replace("again.jpg", "oak")
        clusters.setdefault(row["cluster"], set()).add(kind)
    assert clusters["1"] == {"oak"}  # the largest first
    assert sorted(map(sorted, clusters.values())) == [["ash"], ["elm"], ["oak"]]
    doubtful = {n: r for n, r in found.items() if r["class"] != r["neighbours_say"]}
    said = {name: row["neighbours_say"] for name, row in doubtful.items()}
    assert said == MISPLACED  # inert in a spreadsheet
    assert found["photos/elm/oak 5.png"]["class"] == "elm"
    assert r"photos/ash/ash 1\udcff.png" in found
    votes = expected_votes(list(found), np.load("catalogue/embeddings/embeddings.npy"), copies)
    shares = {name: float(row["share_of_votes"]) for name, row in found.items()}
    assert shares == pytest.approx(votes, abs=6e-4)

    page = Page(Path("catalogue/catalogue.html").read_text())
    headings = [
        text for text in page.texts if text.startswith(("Near-", "Images whose", "Clusters"))
    ]
    assert len(set(headings)) == 3
    assert any(text.startswith("photos/elm/oak 5.png: in elm; ") for text in page.texts)
    queries = [a for _, a in page.tags if "query" in (a.get("class") or "")]
    surest_first = sorted(MISPLACED, key=lambda name: -shares[name])
    assert [(a["title"] or "").rpartition(": ")[2] for a in queries] == surest_first


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
    assert {row["neighbours_say"] for row in table().values()} == {""}
    Path("photos/ash 0.png").unlink()
    Path("photos/no.png").write_text("no")
    code, out, err = execute(catalogue, "--model=w", "--quiet", "photos")
    assert code == 0
    assert err.splitlines()[-1] == "left out: 1 of 19 images"
    assert "images: 1 dropped, 18 kept" in out
    del before["photos/ash 0.png"]
    assert {name: row["cluster"] for name, row in table().items()} == before


def test_equal_images_are_one_cluster() -> None:
    rows = np.full((5, 4), 0.5, np.float32)
    np.testing.assert_array_equal(_clusters(rows), np.zeros(5))


def test_what_cannot_be_catalogued(photos: None, execute: Execute) -> None:
    error = execute(catalogue, "--model=w", "none")[2]
    assert error == "error: none: must be a directory of images\n"
    Path("catalogue/embeddings").mkdir(parents=True)
    Path("catalogue/embeddings/notes").write_text("mine")
    assert (
        "contains notes, which is not an exported" in execute(catalogue, "--model=w", "photos")[2]
    )
    _, *others = Path("photos").glob("*/*")
    for other in others:
        other.unlink()
    error = execute(catalogue, "--model=w", "--output=one", "photos")[2].splitlines()[-1]
    assert error == "error: photos: holds one image; give another folder"
