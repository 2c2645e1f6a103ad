"""`--model` with weights that are not those of a run, and labelled images: `--data`, `--calibrate`."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import dml_jax
from dml_jax.commands import analyse, enroll, evaluate
from dml_jax.evaluation import metrics
from dml_jax.inference.index import Index
from tests.commands.conftest import Fails
from tests.data import layouts
from tests.small_weights import VIT, vit, write

CLASSES = ("ash", "elm", "oak", "yew")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images of each class, and converted weights beside them."""
    monkeypatch.chdir(tmp_path)
    write(Path("weights"), vit, VIT)
    return layouts.photos(Path("photos"), CLASSES, each=6)


def files(photos: Path) -> tuple[list[Path], np.ndarray]:
    """All images in the order of their classes, and their labels."""
    found = [(file, label) for label, name in enumerate(CLASSES) for file in sorted((photos / name).iterdir())]
    return [file for file, _ in found], np.array([label for _, label in found])


def test_evaluate_a_model_on_a_folder(photos: Path) -> None:
    evaluate.execute(["--model=weights", f"--data={photos}", "--quiet", "--output=results.json"])
    results = json.loads(Path("results.json").read_text())
    paths, labels = files(photos)
    expected = metrics.retrieval(dml_jax.load("weights").embed(paths), labels)
    assert results["recall@1"] == pytest.approx(expected["recall@1"])
    assert results["map@r"] == pytest.approx(expected["map@r"], abs=1e-6)
    assert (results["model"], results["data"], results["rows"], results["classes"]) == ("weights", "photos", 24, 4)


def test_thresholds_from_classes_that_are_not_enrolled(
    photos: Path, capsys: pytest.CaptureFixture[str], fails: Fails
) -> None:
    Path("others").mkdir()
    for name in CLASSES[2:]:
        (photos / name).rename(f"others/{name}")
    command = ["--model=weights", "--index=i"]
    enroll.execute([*command, "--calibrate=others", str(photos)])
    said = capsys.readouterr().out
    assert re.search(r"always a name: right .* unknown 0\.0, strangers accepted 100\.0\n", said)
    shutil.rmtree("i")
    layouts.photos(Path("more"), [f"class {i}" for i in range(6)], each=6)
    (photos / "ash").rename("more/ash")
    enroll.execute([*command, "--calibrate=more", str(photos)])
    said = capsys.readouterr().out
    assert re.search("6 images enrolled; .*; calibrated on 7 classes", said)
    index = Index.load(dml_jax.load("weights"), "i")
    assert index.classes == ["elm"]
    index.add({"pine": sorted(Path("more/ash").iterdir())[:1]})  # an equal image under another name
    assert "ash" not in index.strangers.labels
    assert "class 5" in index.strangers.labels
    index.rename("elm", "class 5")
    assert "class 5" not in index.strangers.labels


def test_analyse_a_model_on_a_folder(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyse.execute(["--model=weights", f"--data={photos}", "--what=classes,spectra", "--output=out", "--quiet"])
    assert "report: out/report.html" in capsys.readouterr().out
    page = Path("out/report.html").read_text()
    assert "weights on 24 images of 4 classes in photos" in page
    assert sorted(path.stem for path in Path("out/figures").glob("*.json")) == ["classes", "spectra"]
