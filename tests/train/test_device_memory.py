"""Tests of the message for too little memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dml_jax import run
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.train import evaluations, other_models
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.embedding import Embedder
from tests.train.experiments import linear, small

DEVICES = 1


def too_large(*_: Any, **__: Any) -> jax.Array:
    return jnp.zeros((2**46,), jnp.uint8)


def test_too_little_memory_is_one_sentence_with_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_models, "initial_state", too_large)
    with pytest.raises(
        ConfigError, match=r"data\.batch_size=16: .*precision=bfloat16, backbone\.remat=true or a larger train\.chunks$"
    ) as caught:
        run.check(small(steps=1), Console(quiet=True))
    assert "\n" not in str(caught.value)


def test_too_little_memory_for_an_evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    message = r"evaluation\.batch_size=\d+: the evaluation needs more memory than a device has; set a smaller one"
    config = linear(steps=1)
    with monkeypatch.context() as patch, Stop() as stop:
        patch.setattr(evaluations, "metrics", too_large)
        for changes in ({"evaluate_every": 1}, {}):  # in the training, and after it
            changed = replace(config, train=replace(config.train, **changes))
            with pytest.raises(ConfigError, match=message):
                run.train(changed, tmp_path / str(len(changes)), Console(quiet=True), stop)
    monkeypatch.setattr(Embedder, "embed_split", too_large)
    for mode in (run.evaluate, run.export):
        with pytest.raises(ConfigError, match=message):
            mode(config, tmp_path / "0", "latest", Console(quiet=True))
