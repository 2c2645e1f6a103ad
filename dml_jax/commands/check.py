"""Checks a loss, relation, method, backbone, data set, sampler, optimizer, distance, metric or
test-time step:

    dml-jax check mypaper.losses.my_loss [--config.KEY=VALUE …]

The module or function is first examined by itself, then trained on the built-in digits, killed and
resumed, evaluated, refined, loaded, exported, and trained on 8 devices instead of 1. The table says
what failed, where, and how to fix it; the exit code is then 2. Folders are found as for `train`:
the current one and PYTHONPATH.
"""

import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any

from dml_jax.commands import cli, plugins
from dml_jax.commands.plugins import kind_of
from dml_jax.errors import ConfigError, printable, suggest


def execute(arguments: list[str]) -> None:
    """Reads the command line, checks and prints the table."""
    flags = cli.Parser(__doc__)
    flags.add_argument("module", metavar="MODULE", help="import path of a module or function")
    flags.add_argument(
        "--kind", choices=plugins.KINDS, help="default: known by its functions and their arguments"
    )
    flags.add_argument(
        "--workdir", metavar="DIRECTORY", help="keeps the runs here; default: they are removed"
    )
    flags.add_argument(
        "--alone", action="store_true", help="only examines it by itself, without training"
    )
    options, overrides = flags.read(arguments)
    sys.path.insert(0, "")
    named = found(options.module, options.kind)
    from dml_jax.lab import conformance

    failed = 0
    for path, kind in named:
        with tempfile.TemporaryDirectory(prefix="dml-jax-check-") as folder:
            directory = None if options.alone else Path(options.workdir or folder)
            outcomes = conformance.check(path, kind, overrides, directory)
        print_table(f"{kind} {path}", outcomes)
        failed += sum(one.result == "failed" for one in outcomes)
    if failed:
        raise ConfigError(f"{options.module}: {failed} checks failed")


def found(path: str, kind: str | None) -> list[tuple[str, str]]:
    """(import path, kind) of a module, of a function, or of each function in a module that is a
    plug-in."""
    from dml_jax.config import modules

    parent, _, name = path.rpartition(".")
    if parent:
        modules.import_module("MODULE", path, parent)
    named = getattr(sys.modules.get(parent), name, None)
    if named is None and parent and not hasattr(sys.modules[parent], "__path__"):
        raise ConfigError(
            f"{path}: {parent} has no {name}; {suggest(name, vars(sys.modules[parent]))}"
        )
    functions = {path: named}
    if named is None or inspect.ismodule(named):
        modules.import_module("MODULE", path, path)
        module = sys.modules[path]
        if whole := kind or kind_of(module):
            return [(path, whole)]
        own = {key: f for key, f in vars(module).items() if getattr(f, "__module__", None) == path}
        functions = {f"{path}.{key}": f for key, f in own.items() if not key.startswith("_")}
    kinds = {key: kind or kind_of(f) for key, f in functions.items() if inspect.isfunction(f)}
    if not any(kinds.values()):
        calls = "; ".join(f"{name} {kind.call}" for name, kind in plugins.FUNCTIONS.items())
        raise ConfigError(
            f"{path}: is no plug-in; a module defines build or load, or functions, which are known "
            f"by the names of their arguments ({calls}); give --kind"
        )
    return [(key, of) for key, of in kinds.items() if of]


def print_table(title: str, outcomes: list[Any]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from dml_jax.console import Console

    table = Table(box=box.SIMPLE, title=escape(title))
    for heading in ("check", "result", "what failed, or was found", "where", "how to fix it"):
        table.add_column(heading, overflow="fold")
    for one in outcomes:
        cells = (one.check, one.result, one.text, one.where, one.remedy)
        table.add_row(
            *(escape(printable(cell)) for cell in cells),
            style="red" if one.result == "failed" else "",
        )
    console = Console().rich
    if not console.is_terminal:
        console.width = 160
    console.print(table)
