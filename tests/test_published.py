"""Published weights as the model: `dml_jax.load` and `--model` of the commands."""

from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dml_jax
from dml_jax import table
from dml_jax.backbones import resnet, vit
from dml_jax.commands import cli, embed
from dml_jax.config import files as config_files
from dml_jax.config import resolve
from dml_jax.console import Console
from dml_jax.data import transforms
from dml_jax.evaluation import metrics
from dml_jax.train import experiment as experiments
from dml_jax.train import model_metrics, warm_start
from tests.data import layouts
from tests.small_weights import RESNET, VIT, write


def test_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The class token of a transformer, whatever output its configuration names; resized and cropped as 256 to 224."""
    monkeypatch.chdir(tmp_path)
    params, _ = write(Path("weights/tiny"), vit, VIT)
    photos = layouts.photos(tmp_path / "photos", ("a", "b"), each=2)
    arguments = ["--model=weights/tiny", str(photos), "--output=out"]
    assert cli.exit_code(lambda: embed.execute(arguments)) == 0
    exported = table.read(Path("out"))
    assert "4 embeddings with 16 dimensions" in capsys.readouterr().out
    model = dml_jax.load("weights/tiny")
    assert (model.shape, model.config.data.resize, model.step) == ((32, 32), 37, 0)
    pixels = np.stack([model.read(file) for file in exported.ids])
    tokens, _ = jax.jit(lambda p, x: vit.VisionTransformer(VIT).apply({"params": p}, x, method="encode"))(
        params, (pixels / 255 - 0.5) / 0.5
    )
    expected = np.asarray(tokens)[:, 0]
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(exported.embeddings, expected, atol=1e-5)


def test_average_of_the_feature_map(tmp_path: Path) -> None:
    params, stats = write(tmp_path / "w", resnet, RESNET)
    images = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), dtype=np.uint8)
    model = dml_jax.load(tmp_path / "w")
    crops = np.stack([transforms.evaluation(model.config.data)(image) for image in images])
    backbone = resnet.build(RESNET)
    run = jax.jit(lambda p, s, x: backbone.apply(p, s, backbone.preprocess(x), train=False)[0])
    expected = np.asarray(run(params, stats, jnp.asarray(crops))).mean(axis=(1, 2))
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(list(images)), expected, atol=1e-5)


def test_control_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a run that starts from published weights contain those of the weights alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "w", resnet, RESNET)
    layouts.photos(tmp_path / "photos", tuple(f"class {i}" for i in range(6)), each=4)
    values = config_files.load_config(str(Path(__file__).parents[1] / "configs" / "folder_baseline.py") + ":small", {})
    values["data"].update(path=str(tmp_path / "photos"), batch_size=8, images_per_class=4, image_size=32, resize=37)
    values["backbone"] = asdict(RESNET) | {"pretrained": str(tmp_path / "w")}
    values["evaluation"].update(cluster=False, batch_size=8, controls=False)
    experiment = experiments.build(resolve(values))
    results, _ = model_metrics.final(experiment, warm_start.initial_state(experiment), "last", Console(active=False))
    test = experiment.splits["test"]
    embeddings = dml_jax.load(tmp_path / "w").embed([tmp_path / "photos" / name for name in test.ids])
    expected = metrics.retrieval(embeddings, test.labels)
    found = results["controls"]["published weights without further training"]
    assert set(results["controls"]) == {"published weights without further training"}
    assert (found["recall@1"], found["map@r"]) == pytest.approx((expected["recall@1"], expected["map@r"]))
