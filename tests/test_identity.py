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
from dml_jax import manifest, run
from dml_jax.backbones import deit
from dml_jax.backbones.contract import Pixels
from dml_jax.backbones.weights import converted
from dml_jax.commands import cli, evaluate
from dml_jax.config import Data
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, DataError
from dml_jax.export import embedding_files
from dml_jax.identity import Identity, Versions
from dml_jax.inference import embedding_shards
from dml_jax.inference.index import Index
from dml_jax.train import model as models
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.records import workdir
from tests import probe_images
from tests.train import experiments

QUIET = Console(active=False)
DATA = Data(name="folder", crop="centre", resize=72, image_size=64)


def test_the_files_of_the_probe_are_the_drawn_images() -> None:
    drawn = probe_images.images()
    assert [*drawn] == [*identities.IMAGES]
    for name, (image, _) in drawn.items():
        with Image.open(identities.PROBE / name) as file:
            error = np.abs(np.asarray(file, int) - np.asarray(image, int))
            assert error.mean() < 12 * name.endswith("jpg") + 1e-9


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


def program() -> str:
    """The program without this library in the guide to serving."""
    text = (Path(__file__).parents[1] / "docs/guides/serve.md").read_text()
    (found,) = (part for part in text.split("```") if part.startswith("python\nimport json"))
    return found.removeprefix("python\n")


@pytest.mark.parametrize("upright", [True, False])
def test_the_guide_reads_images_as_models_do(
    upright: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a graph that returns its input."""
    data = replace(DATA, interpolation="bicubic", exif_rotation=upright)
    stated = identities.described(data, (64, 64), deit.Config(), None, Versions(), step=0)
    metadata = {key: json.dumps(fact) for key, fact in stated.items()}
    session = SimpleNamespace(
        get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=metadata),
        run=lambda _, given: [given["images"]],
    )
    runtime: Any = SimpleNamespace(InferenceSession=lambda path: session)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    files = [str(identities.PROBE / name) for name in identities.IMAGES]
    monkeypatch.setattr(sys, "argv", ["program", *files])
    found: dict[str, Any] = {}
    exec(program(), found)
    np.testing.assert_array_equal(found["embeddings"], identities.probe(data, (64, 64)))


@pytest.mark.parametrize(
    "changed",
    [
        {"exif_rotation": False},
        {"resize": 92},
        {"image_size": 56},
        {"interpolation": "bicubic"},
    ],
)
def test_every_step_changes_the_description_and_the_probe(changed: dict[str, Any]) -> None:
    data, side = replace(DATA, **changed), changed.get("image_size", 64)
    backbone = deit.Config()
    stated = [
        identities.described(options, (size, size), backbone, None, Versions(), step=0)
        for options, size in ((DATA, 64), (data, side))
    ]
    assert stated[0] != stated[1]
    assert not np.array_equal(identities.probe(DATA, (64, 64)), identities.probe(data, (side,) * 2))
    assert Identity(stated[1], "").data.resize == data.resize
    assert Identity(stated[1], "").data.exif_rotation == data.exif_rotation


def test_tolerances() -> None:
    """Rounding passes, and no more; those of bfloat16 are larger."""
    rows = np.eye(3, 8, dtype=np.float32)
    for precision, largest in identities.TOLERANCES.items():
        stored = Identity({"precision": precision}, "v").with_rows(rows)
        stored.check_rows(rows[:1] + np.float32(0.9 * largest) * np.eye(3, 8)[1], "x", "remedy")
        for wrong in (rows[:1] + 1.1 * largest * np.eye(3, 8)[1], rows[:1] * np.nan, rows[:1, :5]):
            with pytest.raises(DataError, match=r"^x: .*; remedy$"):
                stored.check_rows(wrong, "x", "remedy")
    with pytest.raises(DataError, match=r"the rows of the probe images differ by 1\.4"):
        stored.check(stored.with_rows(rows[::-1]), "x", "remedy", DataError)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs of the same data, with other seeds, without figures and report."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.run_report, "write", lambda *_: None)
        for seed in range(2):
            config = replace(experiments.small(steps=2), seed=seed)
            run.train(config, folder / str(seed), QUIET, Stop())
    return [folder / "0", folder / "1"]


@pytest.fixture
def own(runs: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs[0], tmp_path / "run"))


def test_a_run_states_the_rows_of_its_model(runs: list[Path]) -> None:
    model = dml_jax.load(runs[0], runtime="jax")
    rows = model.embed(list(identities.probe(model.data, model.shape)))
    np.testing.assert_allclose(identities.of_run(runs[0]).rows, rows, atol=1e-5)
    assert json.loads((runs[0] / "results.json").read_text())["identity"] == model.identity.sha256


def test_verify_computes_the_probe(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def status() -> int:
        return cli.exit_code(lambda: evaluate.execute([f"--model={own}", "--verify", "--quiet"]))

    assert status() == 0
    stated, content, stored = identities.read(own, ""), manifest.read(own), own / "embeddings/test"
    rows = stated.rows.copy()
    rows[2] *= -1  # the first is compared by whatever embeds
    edited = stated.with_rows(rows)
    identities.write(own, edited)
    of_stored = manifest.read(stored)
    manifest.write(stored, of_stored | {"identity": edited.as_json()}, of_stored["files"])
    manifest.write(own, content, content["files"])
    dml_jax.load(own, runtime="jax").unseen()
    assert status() == 2
    assert "the rows of the probe images differ by 2," in capsys.readouterr().err


def test_embeddings_of_another_run_are_refused(runs: list[Path], own: Path) -> None:
    shutil.rmtree(own / "embeddings" / "test")
    shutil.copytree(runs[1] / "embeddings" / "test", own / "embeddings" / "test")
    embedding_files.read(own / "embeddings" / "test")  # undamaged
    with pytest.raises(DataError, match=r"test/manifest\.json: has changed"):
        embedding_files.of_run(own, "test")
    with pytest.raises(DataError, match=r"test/manifest\.json: has changed"):
        dml_jax.load(own, runtime="jax").unseen()
    # Neither does a new manifest help.
    content = manifest.read(own)
    manifest.write(own, {"checkpoint": content["checkpoint"]}, content["files"])
    with pytest.raises(DataError, match=r"another embedding function \(other variables\)"):
        embedding_files.of_run(own, "test")


def test_results_and_identities_of_another_run_are_refused(runs: list[Path], own: Path) -> None:
    (own / manifest.NAME).unlink()
    shutil.copy(runs[1] / "results.json", own)
    with pytest.raises(CheckpointError, match=r"results\.json: are not the results of this run's"):
        workdir.read_results(own)
    shutil.copy(runs[1] / identities.NAME, own)
    with pytest.raises(CheckpointError, match=r"another embedding function \(other variables\)"):
        models.load(own)


def test_a_library_that_computes_something_else(own: Path) -> None:
    """As after an upgrade, or on a device that computes wrongly: the first answer is refused."""
    (own / manifest.NAME).unlink()
    stated = identities.read(own, "")
    identities.write(own, stated.with_rows(stated.rows[:, ::-1]))
    model = dml_jax.load(own, runtime="jax")
    with pytest.raises(CheckpointError, match=r"the rows of the probe images differ by .* delete"):
        model.embed([np.zeros((*model.shape, 3), np.uint8)])


def weights(directory: Path, **changes: Any) -> Path:
    """Converted weights of a small vision transformer, always the same variables."""
    config = deit.Config(depth=1, width=64, heads=1, **changes)
    params, _ = deit.build(config).init(jax.random.key(0), (32, 32))
    flat = traverse_util.flatten_dict(params, sep="/")
    arrays = {f"backbone/params/{name}": np.asarray(leaf) for name, leaf in flat.items()}
    architecture = {k: v for k, v in asdict(config).items() if k not in ("pretrained", "dtype")}
    converted.write(directory, arrays, {"architecture": architecture, "image_shape": [32, 32]})
    models.write_identity(directory)
    return directory


def test_an_index_of_the_same_variables_on_other_pixels(tmp_path: Path) -> None:
    one = dml_jax.load(weights(tmp_path / "deit"), runtime="jax")
    halves = Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    other = dml_jax.load(weights(tmp_path / "vit", pixels=halves), runtime="jax")
    assert one.identity.variables == other.identity.variables
    images = list(identities.probe(one.data, one.shape))
    one.enroll({"a": images[:1], "b": images[1:]}).save(tmp_path / "i.npz")
    assert Index.load(one, tmp_path / "i.npz").classes == ["a", "b"]
    with pytest.raises(DataError, match=r"i\.npz: is of another .*\(deviation: .*, mean: \[0\.485"):
        Index.load(other, tmp_path / "i.npz")
    planned = [embedding_shards.plan([], embedding_shards.source(model)) for model in (one, other)]
    (tmp_path / "parts").mkdir()
    embedding_shards.Shards(tmp_path / "parts", planned[0])
    with pytest.raises(DataError, match=r"parts: is of another embedding function \(deviation"):
        embedding_shards.Shards(tmp_path / "parts", planned[1])


def test_an_index_used_with_another_mean_and_order(tmp_path: Path) -> None:
    """Both are edited in the converted weights, which are refused until they get an identity that
    fits."""
    directory, file = weights(tmp_path / "w"), tmp_path / "i.npz"
    images = list(identities.probe(DATA, (64, 64)))
    one = dml_jax.load(directory, runtime="jax")
    one.enroll({"a": images[:1], "b": images[1:]}).save(file)
    metadata = json.loads((directory / converted.METADATA).read_text())
    metadata["architecture"]["pixels"] |= {"order": "bgr", "mean": [0.5, 0.4, 0.3]}
    (directory / converted.METADATA).write_text(json.dumps(metadata))
    wrong = (
        r"\(mean: \[0\.485, .*\] instead of \[0\.5, 0\.4, 0\.3\], order: 'rgb' instead of 'bgr'\)"
    )
    with pytest.raises(CheckpointError, match=wrong):
        dml_jax.load(directory, runtime="jax")
    models.write_identity(directory)
    other = dml_jax.load(directory, runtime="jax")
    assert np.abs(other.embed(images) - one.embed(images)).max() > 0.05
    with pytest.raises(DataError, match=wrong):
        Index.load(other, file)


def test_edited_weights_are_refused(tmp_path: Path) -> None:
    directory = weights(tmp_path / "deit")
    file = directory / converted.METADATA
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"crop_fraction": 0.775}))
    with pytest.raises(CheckpointError, match=r"another embedding function \(resize: 37 instead"):
        dml_jax.load(directory, runtime="jax")
    # With an identity that fits, its rows do not.
    stated = identities.read(directory, "")
    identities.write(directory, replace(stated, description=stated.description | {"resize": 41}))
    model = dml_jax.load(directory, runtime="jax")
    with pytest.raises(CheckpointError, match="the rows of the probe images differ"):
        model.embed([np.zeros((40, 50, 3), np.uint8)])
    (directory / identities.NAME).unlink()
    with pytest.raises(CheckpointError, match=r"identity\.json: is missing; .*convert the weights"):
        dml_jax.load(directory, runtime="jax")
