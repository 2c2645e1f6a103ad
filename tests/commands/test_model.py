"""`--model` with weights that are not those of a run, and labelled images: `--data`,
`--calibrate`."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml_jax
from dml_jax.commands import analyse, cli, enroll, evaluate, export
from dml_jax.errors import ConfigError
from dml_jax.evaluation import metrics
from dml_jax.export import programs
from dml_jax.inference.index import Index
from tests.commands.conftest import Fails
from tests.data import layouts
from tests.test_published import VIT, vit, write

CLASSES = ("ash", "elm", "oak", "yew")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images of each class, and converted weights beside them."""
    monkeypatch.chdir(tmp_path)
    write(Path("weights"), vit, VIT)
    return layouts.photos(Path("photos"), CLASSES, each=6)


def files(photos: Path) -> tuple[list[Path], np.ndarray]:
    """All images in the order of their classes, and their labels."""
    found = [
        (file, label)
        for label, name in enumerate(CLASSES)
        for file in sorted((photos / name).iterdir())
    ]
    return [file for file, _ in found], np.array([label for _, label in found])


def test_evaluate_a_model_on_a_folder(photos: Path) -> None:
    evaluate.execute(["--model=weights", f"--data={photos}", "--quiet", "--output=results.json"])
    results = json.loads(Path("results.json").read_text())
    paths, labels = files(photos)
    expected = metrics.retrieval(dml_jax.load("weights").embed(paths), labels)
    assert results["recall@1"] == pytest.approx(expected["recall@1"])
    assert results["map@r"] == pytest.approx(expected["map@r"], abs=1e-6)
    assert (results["model"], results["data"], results["rows"], results["classes"]) == (
        "weights",
        "photos",
        24,
        4,
    )


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
    assert re.search("enrolled 6 images of 1 class .*; calibrated on 7 classes", said)
    index = Index.load(dml_jax.load("weights"), "i")
    assert index.classes == ["elm"]
    index.add({"pine": sorted(Path("more/ash").iterdir())[:1]})  # an equal image under another name
    assert "ash" in index.background.overlap
    assert "class 5" not in index.background.overlap
    index.rename("elm", "class 5")
    assert "class 5" in index.background.overlap


def test_analyse_a_model_on_a_folder(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyse.execute(
        ["--model=weights", f"--data={photos}", "--what=classes,spectra", "--output=out", "--quiet"]
    )
    assert "report: out/report.html" in capsys.readouterr().out
    page = Path("out/report.html").read_text()
    assert "weights on 24 images of 4 classes in photos" in page
    assert sorted(path.stem for path in Path("out/figures").glob("*.json")) == [
        "classes",
        "spectra",
    ]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (
            analyse,
            ["--what=overfitting", "--data=photos"],
            "--what=overfitting: needs a trained run on its own data",
        ),
        (
            analyse,
            [],
            "--data: missing; weights has no data of its own, give a folder of class folders",
        ),
        (
            analyse,
            ["--data=photos", "--config.data.threads=1"],
            "--config.data.threads: is not used with --data",
        ),
        (analyse, ["--data=photos", "--split=train"], "--split=train: is not used with --data"),
        (
            analyse,
            ["--data=none"],
            "none: there is no such directory; give a directory with one folder of images",
        ),
        (
            export,
            ["--to=parquet"],
            "--push and --to=parquet: need a finished run with results and embeddings",
        ),
        (export, ["--to=onnx"], "--output: missing; give a directory for the files of weights"),
        (
            evaluate,
            [],
            "--model=weights: is not the work directory of a run; to embed images, give --data",
        ),
        (evaluate, ["--data=photos", "--labels=x"], "--labels: is not used with --model"),
    ],
)
def test_invalid_input(
    command: object,
    arguments: list[str],
    message: str,
    photos: Path,
    fails: Fails,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "check_installed", lambda *_: None)
    monkeypatch.setattr(programs, "NEWER_JAX", (99,))
    assert message in fails(command, "--model=weights", *arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runtime": "tensorflow"}, "runtime='tensorflow': must be one of jax, onnxruntime"),
        ({"scales": ()}, r"scales=\(\): give a tuple of one or more numbers above 0"),
        ({"scales": (1, 0)}, r"scales=\(1, 0\): give a tuple of one or more numbers above 0"),
        ({"scales": 1.5}, r"scales=1\.5: give a tuple of one or more numbers above 0"),
        ({"scales": "1"}, r"scales='1': give a tuple of one or more numbers above 0"),
        ({"scales": (1, None)}, r"scales=\(1, None\): give a tuple of one or more numbers above 0"),
        (
            {"scales": (float("nan"),)},
            r"scales=\(nan,\): give a tuple of one or more numbers above 0",
        ),
    ],
)
def test_load_refuses_unknown_values(options: dict[str, Any], message: str, photos: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        dml_jax.load("weights", **options)


@pytest.mark.parametrize("runtime", [None, "jax"])
@pytest.mark.parametrize("model", [None, 3])
def test_load_refuses_what_is_no_model(model: Any, runtime: Any) -> None:
    with pytest.raises(ConfigError, match=f"^model={model}: give the work directory of a run"):
        dml_jax.load(model, runtime=runtime)
