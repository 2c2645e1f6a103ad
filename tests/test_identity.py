"""The identity of embedding functions and its probe: artefacts of another function are refused."""

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import traverse_util
from PIL import Image, ImageOps

import dml_jax
from dml_jax import identity as identities
from dml_jax import run, seal, table
from dml_jax.backbones import deit
from dml_jax.backbones.contract import Pixels
from dml_jax.backbones.weights import converted
from dml_jax.commands import cli, evaluate, verify
from dml_jax.config import Data
from dml_jax.console import Console
from dml_jax.data.formats import digits
from dml_jax.errors import CheckpointError, DataError, WeightsError
from dml_jax.export import embedding_files
from dml_jax.identity import Versions
from dml_jax.inference.index import Index
from dml_jax.seal import Identity
from dml_jax.train import model as models
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.records import workdir
from tests import toys
from tests.pages import serving_program
from tests.train import experiments

QUIET = Console(active=False)
DATA = Data(name="folder", crop="centre", resize=72, image_size=64)


def test_the_reader_of_the_probe_against_pillow() -> None:
    """Rotation, transparency, grey values, resize and crop, one by one."""
    found = identities.probe(DATA, (64, 64))
    for name, pixels in zip(identities.IMAGES, found, strict=True):
        with Image.open(identities.PROBE / name) as file:
            image = ImageOps.exif_transpose(file).convert("RGB")
        width, height = image.size
        short = min(width, height)
        size = (int(72 * width / short), int(72 * height / short))
        resized = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
        top, left = (round((side - 64) / 2) for side in resized.shape[:2])
        np.testing.assert_array_equal(pixels, resized[top : top + 64, left : left + 64])


@pytest.mark.parametrize("upright", [True, False])
def test_the_guide_reads_images_as_models_do(upright: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a graph that returns its input."""
    data = replace(DATA, interpolation="bicubic", exif_rotation=upright)
    stated = identities.describe(data, (64, 64), deit.Config(), None, Versions(), step=0)
    metadata = {key: json.dumps(fact) for key, fact in stated.items()}
    session = SimpleNamespace(
        get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=metadata), run=lambda _, given: [given["images"]]
    )
    runtime: Any = SimpleNamespace(InferenceSession=lambda path: session)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    files = [str(identities.PROBE / name) for name in identities.IMAGES]
    monkeypatch.setattr(sys, "argv", ["program", *files])
    found: dict[str, Any] = {}
    exec(serving_program(), found)
    np.testing.assert_array_equal(found["embeddings"], identities.probe(data, (64, 64)))


@pytest.mark.parametrize(
    "changed", [{"exif_rotation": False}, {"resize": 92}, {"image_size": 56}, {"interpolation": "bicubic"}]
)
def test_every_step_changes_the_description_and_the_probe(changed: dict[str, Any]) -> None:
    data, side = replace(DATA, **changed), changed.get("image_size", 64)
    backbone = deit.Config()
    stated = [
        identities.describe(options, (size, size), backbone, None, Versions(), step=0)
        for options, size in ((DATA, 64), (data, side))
    ]
    assert stated[0] != stated[1]
    assert not np.array_equal(identities.probe(DATA, (64, 64)), identities.probe(data, (side,) * 2))
    read = identities.data_options(Identity(stated[1], ""))
    assert (read.resize, read.exif_rotation) == (data.resize, data.exif_rotation)


def test_tolerances() -> None:
    """Rounding passes, and no more; that of bfloat16 is larger."""
    row = np.eye(1, 8, dtype=np.float32)[0]
    for precision, largest in identities.TOLERANCES.items():
        stored = Identity({"precision": precision}, "v", row=row.tolist())
        near = row + np.float32(0.9 * largest) * np.eye(8)[1]
        identities.check_row(stored, near, "x", "remedy")
        for wrong in (row + 1.1 * largest * np.eye(8)[1], row * np.nan, row[:5]):
            with pytest.raises(CheckpointError, match=r"^x: the embedding of .*; remedy$"):
                identities.check_row(stored, wrong, "x", "remedy")


@pytest.mark.parametrize("gap", [2.0, 1.0])
def test_another_way_to_read_images_is_noticed(gap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's `reducing_gap` changes few pixels, and those of large images only."""
    here = identities.with_probe({}, "v", DATA, (64, 64), None)
    identities.check_pixels(here, DATA, (64, 64), "x")
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda *args, **options: resize(*args, **options | {"reducing_gap": gap})
    )
    identities.probe.cache_clear()
    with pytest.raises(CheckpointError, match=r"decoded to different pixels: .*pillow \d+\."):
        identities.check_pixels(here, DATA, (64, 64), "x")
    identities.probe.cache_clear()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs of the same data, with other seeds, without figures and report."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.run_report, "write", lambda *_: None)
        patch.setattr(digits, "load", toys.few_digits(8))
        for seed in range(2):
            config = replace(experiments.small(steps=2), seed=seed)
            run.train(config, folder / str(seed), QUIET, Stop())
    return [folder / "0", folder / "1"]


@pytest.fixture
def own(runs: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs[0], tmp_path / "run"))


def test_a_run_states_the_row_of_its_model(runs: list[Path]) -> None:
    model = dml_jax.load(runs[0], runtime="jax")
    stated = seal.read_manifest(runs[0]).identity
    assert stated is not None
    (row,) = model.embed(list(identities.probe(model.data, model.shape)[:1]))
    np.testing.assert_allclose(stated.row, row, atol=1e-5)
    assert json.loads((runs[0] / "results.json").read_text())["identity"] == model.identity.sha256


def sealed_again(run: Path, **changes: Any) -> None:
    """The run with other facts in its identity, by someone who knows how to seal it."""
    stated = seal.read_manifest(run)
    assert stated.identity is not None
    identity = replace(stated.identity, **changes)
    seal.close(run, stated.kind, known=stated.files, parts=stated.parts, identity=identity)


def changed_results(run: Path, results: dict[str, Any]) -> None:
    """The run with other results, whose digest fits."""
    stated = seal.read_manifest(run)
    (run / "results.json").write_text(json.dumps(results))
    known = stated.files | seal.digests(run, ["results.json"])
    seal.close(run, "run", known=known, parts=stated.parts, identity=stated.identity)


def test_the_command_verify(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And `evaluate --verify`; both compute the probe."""

    def status(directory: Path) -> int:
        return cli.exit_code(lambda: verify.execute([str(directory)]))

    assert status(own) == status(own / "embeddings" / "test") == 0
    assert ": run, " in (out := capsys.readouterr().out)
    assert "test: embeddings, 4 files unchanged" in out
    assert "the probe's embedding differs by" in out
    assert status(own / "figures") == 2
    assert "figures: has no manifest.json" in capsys.readouterr().err
    alias = [f"--model={own}", "--verify", "--quiet"]
    assert cli.exit_code(lambda: evaluate.execute(alias)) == 0
    row = [-number for number in seal.read_manifest(own).identity.row]
    sealed_again(own, row=row)
    assert status(own) == cli.exit_code(lambda: evaluate.execute(alias)) == 2
    message = "the embedding of the probe image differs by 2,"
    assert capsys.readouterr().err.count(message) == 2
    sealed_again(own, row=[-number for number in row])
    results = json.loads((own / "results.json").read_text())
    changed_results(own, results | {"map@r": results["map@r"] + 0.01})
    assert status(own) == 2
    assert f"results.json: map@r is {results['map@r'] + 0.01}, but" in capsys.readouterr().err
    changed_results(own, results)
    log = own / "metrics.jsonl"
    log.write_text(log.read_text().replace("1", "2", 1))
    assert status(own) == 2
    assert "metrics.jsonl: has changed since it was written" in capsys.readouterr().err
    assert status(log) == 2
    assert "metrics.jsonl: a file or a broken link is in the way; give" in capsys.readouterr().err


def test_embeddings_of_another_run_are_refused(runs: list[Path], own: Path) -> None:
    shutil.rmtree(own / "embeddings" / "test")
    shutil.copytree(runs[1] / "embeddings" / "test", own / "embeddings" / "test")
    table.read(own / "embeddings" / "test")  # undamaged
    message = r"embeddings/test: does not match manifest\.json"
    for read in (lambda: embedding_files.of_run(own, "test"), lambda: dml_jax.load(own, runtime="jax").unseen()):
        with pytest.raises(DataError, match=message):
            read()
    sealed_again(own)  # does not help
    with pytest.raises(DataError, match=r"was made by another model \(other weights\)"):
        embedding_files.of_run(own, "test")


def test_results_and_identities_of_another_run_are_refused(runs: list[Path], own: Path) -> None:
    changed_results(own, json.loads((runs[1] / "results.json").read_text()))
    with pytest.raises(CheckpointError, match=r"results\.json: belongs to a different model"):
        workdir.read_results(own)
    other = seal.read_manifest(runs[1]).identity
    stated = seal.read_manifest(own)
    seal.close(own, "run", known=stated.files, parts=stated.parts, identity=other)
    with pytest.raises(CheckpointError, match=r"was made by another model \(other weights\)"):
        models.load(own)


def test_a_library_that_computes_something_else(own: Path) -> None:
    """As after an upgrade, or on a device that computes wrongly: the first answer is refused."""
    stated = seal.read_manifest(own).identity
    assert stated is not None
    sealed_again(own, row=stated.row[::-1])
    model = dml_jax.load(own, runtime="jax")
    with pytest.raises(CheckpointError, match=r"the embedding of the probe image differs by"):
        model.embed([np.zeros((*model.shape, 3), np.uint8)])


def test_float64_is_no_other_model(own: Path) -> None:
    before = dml_jax.load(own, runtime="jax").identity
    with jax.enable_x64(True):
        assert dml_jax.load(own, runtime="jax").identity == before


def weights(directory: Path, **changes: Any) -> Path:
    """Converted weights of a small vision transformer, always the same variables."""
    config = deit.Config(depth=1, width=64, heads=1, **changes)
    params, _ = deit.build(config).init(jax.random.key(0), (32, 32))
    flat = traverse_util.flatten_dict(params, sep="/")
    arrays = {f"backbone/params/{name}": np.asarray(leaf) for name, leaf in flat.items()}
    architecture = {k: v for k, v in asdict(config).items() if k not in ("pretrained", "dtype")}
    about = {"architecture": architecture, "image_shape": [32, 32]}
    converted.write(directory, arrays, about, models.identify)
    return directory


def test_an_index_of_the_same_variables_on_other_pixels(tmp_path: Path) -> None:
    one = dml_jax.load(weights(tmp_path / "deit"), runtime="jax")
    halves = Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    other = dml_jax.load(weights(tmp_path / "vit", pixels=halves), runtime="jax")
    assert one.identity.variables == other.identity.variables
    images = list(identities.probe(one.data, one.shape))
    one.enroll({"a": images[:1], "b": images[1:]}).save(tmp_path / "i")
    assert Index.load(one, tmp_path / "i").classes == ["a", "b"]
    with pytest.raises(DataError, match=r"i: was made by another model \(deviation is .*, mean is \[0\.485"):
        Index.load(other, tmp_path / "i")
    table.write(tmp_path / "rows", np.eye(2), None, ["a", "b"], identity=one.identity)
    with pytest.raises(DataError, match=r"rows: was made by another model \(deviation"):
        table.read(tmp_path / "rows", expect=other.identity)


def test_edited_weights_are_refused(tmp_path: Path) -> None:
    directory = weights(tmp_path / "deit")
    file, stated = directory / converted.METADATA, seal.read_manifest(directory)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"crop_fraction": 0.775}))
    with pytest.raises(WeightsError, match=r"weights\.json: has changed since"):
        dml_jax.load(directory, runtime="jax")
    seal.close(directory, converted.KIND, identity=stated.identity)
    with pytest.raises(CheckpointError, match=r"another model \(resize is 37, not 41\)"):
        dml_jax.load(directory, runtime="jax")
    seal.close(directory, converted.KIND)
    with pytest.raises(CheckpointError, match=r"does not record the identity .*; .*convert"):
        dml_jax.load(directory, runtime="jax")
