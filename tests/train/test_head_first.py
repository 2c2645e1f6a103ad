"""Training a head on frozen features before the whole network: `head` of a configuration."""

import json
import signal
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax import run
from dml_jax.config import Config, Group, Train, resolve
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline
from dml_jax.train import experiment as experiments
from dml_jax.train import loop, model, warm_start
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.experiment import Experiment
from tests.train.experiments import values

DEVICES = 1
pytestmark = pytest.mark.usefixtures("few_images", "patches")


def config(**head: Any) -> Config:
    given = values(steps=2)
    given["method"] = asdict(baseline.make_config("proxy_anchor", embedding_dim=8))
    # So slow that the network stays where it starts.
    given["train"]["groups"] = {name: asdict(Group(1e-9)) for name in baseline.GROUPS}
    groups = {name: Group(1e-2) for name in baseline.GROUPS} | {"backbone": Group(0.0, freeze=True)}
    given["head"] = asdict(Train(groups=groups, **{"steps": 4, "feature_views": 1} | head))
    given["evaluation"] |= {"controls": True}
    return resolve(given)


def train(directory: Path) -> None:
    with Stop() as stop:
        run.train(config(), directory, Console(active=False), stop)


def test_the_network_starts_from_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an interruption before its own training, for which head and features are used as
    they are."""
    head, directory = tmp_path / "run" / "head", tmp_path / "run"

    def interrupted(experiment: Experiment, target: Path, *rest: Any) -> Any:
        if target == head:
            return loop_train(experiment, target, *rest)
        raise Interrupted(signal.SIGTERM)

    loop_train = loop.train
    with monkeypatch.context() as patched:
        patched.setattr(loop, "train", interrupted)
        with pytest.raises(Interrupted):
            train(directory)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()}
    assert written
    train(directory)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    results = json.loads((directory / "results.json").read_text())
    assert set(results["controls"]) == {"raw pixels", "colour histogram", "head on frozen features"}

    trained, first = model.load(directory, "latest"), model.load(head, "latest")
    assert (trained.step, first.step) == (2, 4)
    random = warm_start.initial_state(experiments.build(config())).params
    equal = partial(np.testing.assert_allclose, atol=1e-7)
    jax.tree.map(equal, trained.params["embedding"], first.params["embedding"])
    jax.tree.map(equal, trained.params["backbone"], random["backbone"])
    assert (
        np.abs(trained.params["embedding"]["kernel"] - random["embedding"]["kernel"]).max() > 1e-3
    )


def test_a_head_needs_features() -> None:
    with pytest.raises(ConfigError, match=r"head\.feature_views=.*: must be positive"):
        config(feature_views=0)
