"""Commands, run in this process and in an empty directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from dml_jax.backbones import deit, resnet
from dml_jax.backbones.weights import known_networks
from dml_jax.commands import cli
from tests.backbones import state_dicts
from tests.commands.converted import CHANNELS, TINY

Execute: TypeAlias = Callable[..., tuple[int, str, str]]
Fails: TypeAlias = Callable[..., str]


@pytest.fixture
def execute(capsys: pytest.CaptureFixture[str]) -> Execute:
    """Runs a command with its arguments: (exit code, standard output, standard error)."""

    def run(command: Any, *arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()  # of the test's own calls
        code = cli.exit_code(lambda: command.execute([*map(str, arguments)]))
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def fails(execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fails:
    """Runs a command that must print one line of an error, nothing else, and leave no file: this line."""
    monkeypatch.chdir(tmp_path)

    def run(command: Any, *arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        code, out, err = execute(command, *arguments)
        assert (code, out, err.count("\n"), err.startswith("error: ")) == (2, "", 1, True), (out, err)
        assert sorted(tmp_path.rglob("*")) == before
        return err.removeprefix("error: ")

    return run


@pytest.fixture
def small_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dml-jax convert`, here in an empty directory, converts the small networks of its tests as well."""
    monkeypatch.chdir(tmp_path)
    networks = known_networks.published() | {"tiny": TINY, "tiny_deit": deit.Config(depth=1, width=64, heads=1)}
    monkeypatch.setattr(known_networks, "published", lambda: networks)


@pytest.fixture(scope="module")
def tiny() -> state_dicts.StateDict:
    """A small ResNet with a classifier, in torchvision's names."""
    head = {"fc.weight": np.ones((10, CHANNELS), np.float32), "fc.bias": np.zeros(10, np.float32)}
    return state_dicts.random_state_dict(resnet.build(TINY), "resnet") | head
