"""Training a head on frozen features before the whole network: `head` of a configuration."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax import config as configs
from dml_jax import run
from dml_jax.config import Config, Group, Train
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline
from dml_jax.train import experiment as experiments
from dml_jax.train import model, other_models
from dml_jax.train.distributed.stop_signals import Stop
from tests.train.experiments import values

DEVICES = 1
pytestmark = pytest.mark.usefixtures("few_images", "patches")


def config(**head: Any) -> Config:
    given = values(steps=2)
    given["method"] = asdict(baseline.make_config("proxy_anchor", embedding_dim=8))
    given["train"]["groups"] = {name: asdict(Group(1e-3)) for name in baseline.GROUPS}
    groups = {name: Group(1e-2) for name in baseline.GROUPS} | {"backbone": Group(0.0, freeze=True)}
    given["head"] = asdict(Train(groups=groups, **{"steps": 4, "feature_views": 1} | head))
    given["evaluation"] |= {"controls": True}
    return configs.resolve(given)


def train(directory: Path) -> dict[str, Any]:
    with Stop() as stop:
        run.train(config(), directory, Console(active=False), stop)
    return json.loads((directory / "results.json").read_text())


def test_the_network_starts_from_the_head(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    results = train(directory)
    experiment = experiments.build(config())._replace(start=str(directory / "head"))
    start = other_models.initial_state(experiment, Console(active=False))
    head = model.load(directory / "head", "latest")
    assert head.step == 4
    jax.tree.map(np.testing.assert_array_equal, start.params["embedding"], head.params["embedding"])
    random = other_models.initial_state(experiments.build(config()), Console(active=False))
    jax.tree.map(np.testing.assert_array_equal, start.params["backbone"], random.params["backbone"])
    assert np.any(start.params["embedding"]["kernel"] != random.params["embedding"]["kernel"])
    pixels = np.stack([experiment.splits["test"].read(i, None) for i in range(4)])
    found = jax.jit(experiment.method.embed)(start.params, start.model_state, pixels)
    expected = jax.jit(head.method.embed)(head.params, head.model_state, pixels)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert set(results["controls"]) == {"raw pixels", "colour histogram", "head on frozen features"}

    # After an interruption before the first checkpoint of the network, head and features are used as they are.
    features = {path: path.stat().st_mtime_ns for path in (directory / "head" / "features").iterdir()}
    embeddings = (directory / "embeddings" / "test" / "embeddings.npy").read_bytes()
    shutil.rmtree(directory / "checkpoints")
    (directory / "results.json").unlink()
    assert train(directory)["recall@1"] == results["recall@1"]
    assert (directory / "embeddings" / "test" / "embeddings.npy").read_bytes() == embeddings
    assert {path: path.stat().st_mtime_ns for path in features} == features


def test_a_head_needs_features() -> None:
    with pytest.raises(ConfigError, match=r"head\.feature_views=.*: must be positive"):
        config(feature_views=0)
