"""Tests of the message for too little memory."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dml_jax import modes
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.train import device_memory
from tests.train.experiments import small


def too_large(*_: Any) -> jax.Array:
    return jnp.zeros((2**46,), jnp.uint8)


def test_too_little_memory_is_one_sentence_with_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes.warm_start, "initial_state", too_large)
    with pytest.raises(
        ConfigError, match=r"data\.batch_size=16: .*precision=bfloat16 or backbone\.remat=true or "
    ) as caught:
        modes.check(small(steps=1), Console(quiet=True))
    assert "\n" not in str(caught.value)


def test_other_errors_of_the_runtime_stay() -> None:
    error = jax.errors.JaxRuntimeError("INTERNAL: unknown")
    with pytest.raises(jax.errors.JaxRuntimeError) as caught, device_memory.explained(small(steps=1)):
        raise error
    assert caught.value is error


def test_only_what_would_help_is_named() -> None:
    config = small(steps=1)
    assert device_memory.remedies(config, 1) == [
        "train.precision=bfloat16",
        "backbone.remat=true",
        "train.chunks=2 with backbone.freeze_bn=true",
    ]
    frozen = replace(config, backbone=replace(config.backbone, remat=True, freeze_bn=True))
    assert device_memory.remedies(frozen, 8)[1:] == ["train.chunks=2", "train.shard_classes=true (for many classes)"]
    everything = replace(frozen, train=replace(frozen.train, precision="bfloat16", chunks=2, shard_classes=True))
    assert device_memory.remedies(everything, 8) == []
