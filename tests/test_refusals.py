"""What the user reads when the input is wrong: `refusals/*.txt` list inputs with their sentences.

A file consists of blocks between empty lines. A block is a command line (`$ train --config=…`) or
Python (`>>> …`, continued with `... `) and, in its last line, what it is refused with. A block
without a sentence prepares: the first one for the whole file, later ones until the next. Every
block starts in an empty directory, which its command must leave as it was; Python has the names
`write(path, text)` and `monkeypatch`. `$PWD` and `$ROOT` stand for that directory and the
repository's, `[...]` for any text, such as that of other libraries.

Write `?` as the sentence of a new block; `pytest tests/test_refusals.py --update` writes what is
printed today, for review in the diff.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

from dml_jax import __main__ as command
from dml_jax.errors import printable

FOLDER = Path(__file__).parent / "refusals"
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Refusal:
    """A block: the file and line of its sentence, the Python before it, the input, the sentence."""

    path: Path
    line: int
    setup: tuple[str, ...]
    inputs: tuple[str, ...]
    sentence: str


def statements(lines: list[str]) -> Iterator[str]:
    """Command lines, and the Python between them."""
    code: list[str] = []
    for line in lines:
        if line.startswith("$ "):
            yield from ["\n".join(code)] if code else []
            yield line
            code = []
        else:
            code.append(line[4:])
    yield from ["\n".join(code)] if code else []


def refusals(path: Path) -> Iterator[Refusal]:
    common: tuple[str, ...] | None = None
    setup: tuple[str, ...] = ()
    block: list[str] = []
    for number, line in enumerate([*path.read_text().splitlines(), ""]):
        if line.startswith((">>> ", "... ", "$ ")) or line in (">>>", "..."):
            block.append(line)
        elif line and not line.startswith("#"):
            yield Refusal(path, number, (*(common or ()), *setup), tuple(statements(block)), line)
            block = []
        elif not line and block:
            common, setup = (common, (*statements(block),)) if common else ((*statements(block),), ())
            block = []


def outcome(text: str, names: dict[str, Any], patch: pytest.MonkeyPatch, capsys: Any) -> str:
    """What an input is refused with, or an empty text."""
    if not text.startswith("$ "):
        try:
            exec(compile(text, "refusals", "exec"), names)
        except Exception as error:
            return printable(" ".join(f"{type(error).__name__}: {error}".split()))
        return ""
    before = {p: p.lstat().st_size for p in Path.cwd().rglob("*")}
    patch.setattr(sys, "argv", ["dml-jax", *shlex.split(text[2:])])
    capsys.readouterr()
    code, stderr = command.main(), capsys.readouterr().err
    if code == 0:
        return ""
    assert {p: p.lstat().st_size for p in Path.cwd().rglob("*")} == before
    assert (code, stderr.count("\n"), stderr[:7]) == (2, 1, "error: "), (code, stderr)
    return str(stderr.rstrip("\n"))


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty directory; afterwards the process is as before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a directory stays as it was
    options = {key: jax.config.values[key] for key in jax.config.values if "compilation_cache" in key}
    yield
    for key, value in options.items():
        jax.config.update(key, value)
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


ALL = [case for path in sorted(FOLDER.glob("*.txt")) for case in refusals(path)]


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("case", [pytest.param(r, id=f"{r.path.stem}:{r.line + 1}") for r in ALL])
def test_refusal(
    case: Refusal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    names: dict[str, Any] = {"monkeypatch": monkeypatch, "write": write}
    for text in (*case.setup, *case.inputs[:-1]):
        assert outcome(text, names, monkeypatch, capsys) == ""
    printed = outcome(case.inputs[-1], names, monkeypatch, capsys)
    printed = printed.replace(os.getcwd(), "$PWD").replace(str(ROOT), "$ROOT")
    assert printed, "nothing was refused"
    pattern = ".*".join(map(re.escape, case.sentence.split("[...]")))
    if request.config.getoption("--update") and not re.fullmatch(pattern, printed):
        lines = case.path.read_text().splitlines()
        lines[case.line] = printed
        case.path.write_text("\n".join(lines) + "\n")
    else:
        assert re.fullmatch(pattern, printed), f"{printed}\n{case.sentence}"
