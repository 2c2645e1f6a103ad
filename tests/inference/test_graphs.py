"""Embedding by onnxruntime from a graph in the cache: rows, identity, errors, and what is not
imported.

Slow: importing the converter takes ten seconds or more.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import datasets

import dml_jax
from dml_jax import identity as identities
from dml_jax import seal
from dml_jax.commands import cli, embed, export
from dml_jax.errors import CheckpointError, ConfigError, DataError
from dml_jax.export import programs
from dml_jax.identity import Identity, Versions
from dml_jax.inference import graphs
from dml_jax.inference.embedding_model import locate
from dml_jax.inference.index import Index
from tests.pages import serving_program

PHOTOS = Path(datasets.__file__).parent / "images"


def status(*arguments: str) -> int:
    return cli.exit_code(lambda: embed.execute(list(arguments)))


def test_the_runtime_must_be_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = graphs.importlib.util.find_spec
    monkeypatch.setattr(graphs.importlib.util, "find_spec", lambda name: None if "onnx" in name else find(name))
    assert status("--model=lite0", "--runtime=onnxruntime", str(PHOTOS)) == 2
    assert "--runtime=onnxruntime: onnxruntime is not installed: pip install" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_a_missing_graph_is_made_once(
    fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For models that would have used it, never by `load`; a failure is not repeated, an
    interruption leaves nothing."""
    find, written = graphs.importlib.util.find_spec, list[Path]()
    monkeypatch.setattr(graphs.importlib.util, "find_spec", lambda name: "onnx" in name or find(name))
    monkeypatch.setattr(graphs, "cache_dir", lambda: tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")

    def load(runtime: Any = None, **options: Any) -> Any:
        directory = locate("lite0")
        stated = graphs._stated(directory, Versions(**options))
        loaded = SimpleNamespace(directory=directory, identity=stated, shape=(8, 8), trained=None, lacks_graph=False)
        with monkeypatch.context() as patch:
            patch.setattr("dml_jax.inference.model.Model", lambda *_, **__: loaded)
            return dml_jax.load("lite0", runtime=runtime, **options)

    def write(path: Path, *_: Any) -> None:
        written.append(path)
        path.write_bytes(b"")
        if len(written) == 1:
            raise KeyboardInterrupt
        if fails:
            raise DataError("no operator\nfor this")

    monkeypatch.setattr(programs, "write_onnx", write)
    monkeypatch.setattr(programs, "function_of", lambda trained: None)
    graphs.make(load("jax"))
    model = load(flip=True)
    assert written == []
    with pytest.raises(ConfigError, match=r"^--runtime=onnxruntime: the cache has no ONNX"):
        load("onnxruntime")
    with pytest.raises(KeyboardInterrupt):
        graphs.make(model)
    place = graphs.entry(model.identity)
    assert not [path for path in place.parent.iterdir() if path.suffix != ".lock"]
    capsys.readouterr()
    for _ in range(2):
        graphs.make(model)
    assert len(written) == 2
    assert place.exists() != fails
    end = rf"no operator; delete {place}\.error to try again" if fails else rf"\d+ s, {place}"
    assert re.fullmatch(rf"making the ONNX graph of the model, once, .*: {end}\n", capsys.readouterr().err)


def test_what_the_graph_lacks_is_loaded_with_the_same_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / graphs.GRAPH).write_bytes(b"")
    facts = {"crop": 8, "resize": 9, "interpolation": "bicubic", "step": 3}
    facts |= {"exif_rotation": True, "size": [8, 8], "flip": True, "scales": [1.0]}
    stated = Identity(facts | {"distance": "cosine"}, "v", row=[1.0, 0.0, 0.0])
    model: Any = graphs.GraphModel(tmp_path, stated, tmp_path, trust_code=True)
    monkeypatch.setattr("dml_jax.inference.model.Model", lambda *_, **given: SimpleNamespace(config=given))
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
    ours.enroll({"a": images[:2], "b": images[2:4]}).save("i")
    assert Index.load(theirs, "i").classes == ["a", "b"]
    assert theirs.config.data.image_size == 224  # of the model that JAX loads for it


@pytest.mark.slow
@pytest.mark.usefixtures("cached")
def test_the_first_answer_imports_no_jax() -> None:
    code = (
        "import sys; from dml_jax.commands import embed; embed.execute(sys.argv[1:]); "
        "assert not {'jax', 'flax', 'orbax', 'grain', 'scipy'} & {*sys.modules}"
    )
    command = [sys.executable, "-c", code, "--model=lite0", str(PHOTOS / "china.jpg"), "--output=out"]
    subprocess.run(command, check=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_first_command_makes_the_graph(cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end; `serve` before it prints its address."""
    weights = Path("dml_jax", "weights")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = os.environ | {"PYTHONPATH": str(Path(dml_jax.__file__).parents[1])}
    command = [sys.executable, "-m", "dml_jax"]
    for first in (["embed", str(PHOTOS), "--quiet"], ["serve", "--port=0"]):
        shutil.rmtree("cache", ignore_errors=True)
        shutil.copytree(cached / weights, tmp_path / "cache" / weights)
        assert dml_jax.load("lite0").runtime == "jax"
        if first[0] == "serve":
            pytest.importorskip("httptools")
        with subprocess.Popen(
            [*command, *first, "--model=lite0"], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            if first[0] == "serve":
                assert process.stdout
                assert process.stdout.readline().startswith("http://")
                process.terminate()
            _, err = process.communicate()
        assert err.count("making the ONNX graph") == 1
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
    stated = seal.read_manifest(entry).identity
    assert stated
    changed = replace(stated, description=stated.description | {"resize": 289})
    seal.close(entry, graphs.KIND, identity=changed)
    assert dml_jax.load("lite0").runtime == "jax"
    assert not entry.exists()

    # A graph that computes something else, with a manifest that fits.
    shutil.copytree(whole, entry)
    session = graphs._session
    other = SimpleNamespace(run=lambda *a: [1 - session((entry / graphs.GRAPH).read_bytes(), 1).run(*a)[0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "_session", lambda graph, threads: other)
        wrong = dml_jax.load("lite0")
        with pytest.raises(CheckpointError, match=r"the embedding of the probe .* is deleted, so try"):
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
    exec(serving_program(), found)
    rows = dml_jax.load("lite0", runtime="jax").embed(files)
    np.testing.assert_allclose(found["embeddings"], rows, atol=1e-5)
