"""Embedding by onnxruntime from a graph in the cache: rows, identity, errors, and what is not
imported.

Slow: importing the converter takes ten seconds or more.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import datasets

import dml_jax
from dml_jax import identity as identities
from dml_jax import manifest
from dml_jax.commands import cli, embed, export
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.export import embedding_files
from dml_jax.identity import Identity, Versions
from dml_jax.inference import graphs
from dml_jax.inference.embedding_model import locate
from dml_jax.inference.index import Index
from tests.test_identity import program

PHOTOS = Path(datasets.__file__).parent / "images"


def status(*arguments: str) -> int:
    return cli.exit_code(lambda: embed.execute(list(arguments)))


def test_the_runtime_must_be_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = graphs.importlib.util.find_spec
    monkeypatch.setattr(
        graphs.importlib.util, "find_spec", lambda name: None if "onnx" in name else find(name)
    )
    assert status("--model=lite0", "--runtime=onnxruntime", str(PHOTOS)) == 2
    assert (
        "--runtime=onnxruntime: onnxruntime is not installed: pip install"
        in capsys.readouterr().err
    )


def test_a_missing_graph_is_made_once_in_the_background(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For models that would have used it, in one process however often commands end meanwhile."""
    find, started = graphs.importlib.util.find_spec, list[list[str]]()
    monkeypatch.setattr(
        graphs.importlib.util, "find_spec", lambda name: "onnx" in name or find(name)
    )
    monkeypatch.setattr(graphs.subprocess, "Popen", lambda command, **_: started.append(command))
    monkeypatch.setattr(graphs, "_missing", {})
    monkeypatch.setattr(graphs, "cache_dir", lambda: tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    loaded = SimpleNamespace(directory=locate("lite0"))
    monkeypatch.setattr("dml_jax.inference.model.Model", lambda *_, **__: loaded)
    place = graphs.entry(graphs._stated(loaded.directory, Versions(flip=True)))
    dml_jax.load("lite0", runtime="jax")
    graphs.make_missing()
    assert started == []
    dml_jax.load("lite0", flip=True)
    graphs.make_missing()
    graphs.make_missing()
    ((*_, options, log, _),) = started
    Path(log).write_text("Traceback: cannot be converted")
    os.utime(log, (0, 0))
    graphs.make_missing()
    assert len(started) == 1
    Path(log).write_text("a warning")  # and then the process was killed
    os.utime(log, (0, 0))
    graphs.make_missing()
    assert len(started) == 2
    Path(log).unlink()
    place.mkdir()
    graphs.make_missing()
    assert len(started) == 2
    directory = str(loaded.directory.absolute())
    expected = {"model": directory, "trust_code": False, "flip": True, "scales": [1.0]}
    assert json.loads(options) == expected
    assert log == f"{place}.log"
    assert capsys.readouterr().err.count("is made in the background") == 2


def test_what_the_graph_lacks_is_loaded_with_the_same_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / graphs.GRAPH).write_bytes(b"")
    facts = {"crop": 8, "resize": 9, "interpolation": "bicubic", "step": 3}
    facts |= {"exif_rotation": True, "size": [8, 8], "flip": True, "scales": [1.0]}
    stated = Identity(facts | {"distance": "cosine"}, "v").with_rows(np.eye(3))
    model: Any = graphs.GraphModel(tmp_path, stated, tmp_path, trust_code=True)
    monkeypatch.setattr(
        "dml_jax.inference.model.Model", lambda *_, **given: SimpleNamespace(config=given)
    )
    assert model.config == {"trust_code": True, "flip": True, "scales": (1.0,)}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the graph of lite0, which `export` put there."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    folder = tmp_path_factory.mktemp("graph")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        export.execute(["--model=lite0", "--to=onnx", f"--output={folder / 'out'}"])
    return folder


@pytest.fixture
def cached(graph: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(graph))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.chdir(tmp_path)
    return graph


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rows_and_identity_are_those_of_jax(cached: Path) -> None:
    """Many images with a bad one in the middle, a single one, an index made with the other
    runtime."""
    ours, theirs = dml_jax.load("lite0", runtime="jax"), dml_jax.load("lite0")
    assert (ours.runtime, theirs.runtime) == ("jax", "onnxruntime")
    assert theirs.identity == ours.identity
    rng = np.random.default_rng(0)
    images: list[Any] = [rng.integers(0, 256, (60 + i, 90, 3), np.uint8) for i in range(70)]
    expected = ours.embed(images)
    np.testing.assert_allclose(theirs.embed(images), expected, atol=1e-5)
    np.testing.assert_allclose(theirs.embed(images[:1]), expected[:1], atol=1e-5)
    bad: list[Exception] = []
    broken = [*images[:30], b"no image", *images[30:]]
    (rows,) = theirs.embed_each([broken], bad.append)
    assert np.isnan(rows).all(axis=1).nonzero()[0].tolist() == [30]
    np.testing.assert_allclose(np.delete(rows, 30, axis=0), expected, atol=1e-5)
    assert len(bad) == 1
    ours.enroll({"a": images[:2], "b": images[2:4]}).save("i.npz")
    assert Index.load(theirs, "i.npz").classes == ["a", "b"]
    assert theirs.config.data.image_size == 224  # of the model that JAX loads for it


@pytest.mark.slow
@pytest.mark.usefixtures("cached")
def test_the_first_answer_imports_no_jax() -> None:
    code = (
        "import sys; from dml_jax.commands import embed; embed.execute(sys.argv[1:]); "
        "assert not {'jax', 'flax', 'orbax', 'grain', 'scipy'} & {*sys.modules}"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "--model=lite0",
        str(PHOTOS / "china.jpg"),
        "--output=out",
    ]
    subprocess.run(command, check=True)
    assert embedding_files.read(Path("out")).manifest["plan"]["runtime"] == "onnxruntime"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_first_command_has_the_graph_made(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = Path("dml_jax", "weights")
    shutil.copytree(cached / weights, tmp_path / "cache" / weights)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = graphs.entry(dml_jax.load("lite0", runtime="jax").identity)
    command = [sys.executable, "-m", "dml_jax", "embed", "--model=lite0", str(PHOTOS), "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(Path(dml_jax.__file__).parents[1])}
    subprocess.run(command, check=True, env=environment)
    assert embedding_files.read(Path("embeddings")).manifest["plan"]["runtime"] == "jax"
    while (log := place.with_suffix(".log")).exists():
        assert not log.read_text()
        time.sleep(0.1)
    assert dml_jax.load("lite0").runtime == "onnxruntime"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_or_other_graph_is_not_used(cached: Path, tmp_path: Path) -> None:
    model: Any = dml_jax.load("lite0")
    entry = graphs.entry(model.identity)
    assert entry.is_dir()
    whole = shutil.copytree(entry, tmp_path / "whole")
    assert graphs.entry(dml_jax.load("lite0", flip=True).identity) != entry

    graph = bytearray((entry / graphs.GRAPH).read_bytes())
    graph[-1] ^= 1
    (entry / graphs.GRAPH).write_bytes(graph)
    assert dml_jax.load("lite0").runtime == "jax"
    assert not entry.exists()

    # Another reading of images, with a manifest that fits.
    shutil.copytree(whole, entry)
    stated = identities.read(entry, "")
    changed = replace(stated, description=stated.description | {"resize": 289})
    identities.write(entry, changed)
    manifest.write(entry, {})
    assert dml_jax.load("lite0").runtime == "jax"
    assert not entry.exists()

    # A graph that computes something else, with a manifest that fits.
    shutil.copytree(whole, entry)
    session = graphs._session
    other = SimpleNamespace(
        run=lambda *a: [1 - session((entry / graphs.GRAPH).read_bytes(), 1).run(*a)[0]]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "_session", lambda graph, threads: other)
        wrong = dml_jax.load("lite0")
        with pytest.raises(CheckpointError, match=r"the rows of the probe .* is deleted, so try"):
            wrong.embed([np.zeros((300, 300, 3), np.uint8)])
    assert not entry.exists()
    shutil.copytree(whole, entry)
    with pytest.raises(ConfigError, match="needs the reported checkpoint"):
        dml_jax.load("lite0", "best", runtime="onnxruntime")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_program_of_the_guide(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cached / "out")
    files = [str(identities.PROBE / name) for name in identities.IMAGES]
    monkeypatch.setattr(sys, "argv", ["program", *files])
    found: dict[str, Any] = {}
    exec(program(), found)
    rows = dml_jax.load("lite0", runtime="jax").embed(files)
    np.testing.assert_allclose(found["embeddings"], rows, atol=1e-5)
