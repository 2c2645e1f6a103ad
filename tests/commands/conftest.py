"""Commands, run in this process and in an empty directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dml_jax.commands import cli

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
