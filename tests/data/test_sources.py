"""How sources are read: `sources.txt` lists trees of files (see `trees`), each with what is read.

A case is a line `$ TREE… [--option=value…]`, or `$ inspect …` for the page of that command, and the
lines that follow: the classes of each split (without its name, the source gives no splits), columns
and doubts. `--name` names the data set; the usual ones are csv, if there is a table, and folder.
With `--train=yes`, test classes must be new.

Write `?` below a new case; `pytest tests/data/test_sources.py --update` writes what is read today.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from dml_jax.commands import inspect
from dml_jax.config import plugin_module
from dml_jax.data.files import SPLITS
from dml_jax.data.sources import Options, list_files
from dml_jax.data.understand import understand
from dml_jax.errors import UserError, printable
from tests.data import trees

FILE = Path(__file__).with_name("sources.txt")


@dataclass(frozen=True)
class Case:
    line: int
    command: str
    printed: list[str]


def cases() -> list[Case]:
    cases: list[Case] = []
    for number, line in enumerate(FILE.read_text(encoding="utf-8").splitlines()):
        if line.startswith("$ "):
            cases.append(Case(number, line, []))
        elif line and not line.startswith("#"):
            cases[-1].printed.append(line)
    return cases


def reading(name: str, options: Options, *, train: bool) -> list[str]:
    """How the files in this directory are read, for all their classes or to train."""
    recipe = plugin_module("data", name).RECIPE
    table = understand(recipe, list_files([Path()]), options, "x", labelled=not train)
    classes = {split: sorted({e.class_name for e in table.rows if e.split == split}) for split in SPLITS}
    names = {split: ", ".join(classes[split]) for split in SPLITS if classes[split]}
    if table.undecided == len(table.rows):
        names = {"": ", ".join(sorted({entry.class_name for entry in table.rows}))}
    same = {n: ", ".join(split for split in names if names[split] == n) for n in names.values()}
    lines = [" | ".join(f"{same[n]}: {n}" for n in same).removeprefix(": ")]
    lines += [f"columns: {table.columns}"] if table.columns else []
    return lines + [f"doubt: {line}" for line in table.doubts]


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    tokens = shlex.split(command[2:])
    options = dict(t[2:].split("=", 1) for t in tokens if t.startswith("--"))
    root = Path("x") if tokens[0] == "inspect" else Path()
    for token in tokens[root.name == "x" :]:
        if not token.startswith("--"):
            trees.write(root, token)
    try:
        if root.name:
            inspect.execute([options.pop("at", "x"), *(f"--{key}={options[key]}" for key in options)])
            return capsys.readouterr().out.splitlines()
        name = options.pop("name", "csv" if any(Path().rglob("*.csv")) else "folder")
        train = bool(options.pop("train", ""))
        return [printable(line) for line in reading(name, Options(**options), train=train)]  # type: ignore[arg-type]
    except UserError as error:
        return [f"error: {printable(str(error))}"]


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c.line + 1}") for c in cases()])
def test_reading(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    lines_today = printed(case.command, capsys)
    if request.config.getoption("--update") and lines_today != case.printed:
        lines = FILE.read_text(encoding="utf-8").splitlines()
        at = lines.index(case.command)
        lines[at + 1 : at + 1 + len(case.printed)] = lines_today
        FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        assert lines_today == case.printed
