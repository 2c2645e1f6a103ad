"""Checks a loss, method, backbone, data set, sampler, optimizer, distance, metric or test-time step of your own:

    dml-jax check mypaper.losses.my_loss [--config.KEY=VALUE …]

The module or function is first examined by itself, then trained on the built-in digits, killed and resumed, evaluated,
refined, exported, loaded, and trained on 8 devices instead of 1. The table says what failed, where, and how to fix it;
the exit code is then 2. Folders are found as for `train`: the current one and PYTHONPATH.
"""

import importlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dml_jax.commands import cli
from dml_jax.errors import ConfigError, printable

FIRST_ARGUMENT = {  # of a function, by which its kind is known
    "embeddings": "loss", "labels": "sampler", "weight_decay": "optimizer", "hits": "metric", "queries": "step",
}  # fmt: skip
KINDS = ("loss", "distance", "sampler", "optimizer", "metric", "step", "method", "backbone", "data")


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("module", nargs="?", metavar="MODULE", help="import path of a module or function")
    flags.add_argument("--kind", help=f"{', '.join(KINDS)}; default: known by its functions and their arguments")
    flags.add_argument("--workdir", metavar="DIRECTORY", help="keeps the runs here; default: they are removed")
    flags.add_argument("--alone", action="store_true", help="only examines it by itself, without training")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, checks and prints the table."""
    options, overrides = parser().read(arguments)
    cli.require(options.module, "MODULE: missing; give an import path, e.g. mypaper.losses.my_loss")
    cli.require(options.kind in (None, *KINDS), f"--kind={options.kind}: must be one of {', '.join(KINDS)}")
    sys.path.insert(0, "")
    plugins = list(found(options.module, options.kind))
    from dml_jax.commands import conformance

    failed = 0
    for path, kind in plugins:
        with tempfile.TemporaryDirectory(prefix="dml-jax-check-") as folder:
            directory = Path(options.workdir or folder)
            outcomes = conformance.check(path, kind, overrides, None if options.alone else directory)
            failed += print_table(f"{kind} {path}", outcomes)
    if failed:
        raise ConfigError(f"{options.module}: {failed} checks failed")


def found(path: str, kind: str | None) -> Iterator[tuple[str, str]]:
    """(import path, kind) of a module, of a function, or of each function in a module that is a plug-in."""
    try:
        module = _module(path)
        if module is None:
            module, name = importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]
            functions: dict[str, Any] = {name: getattr(module, name, None)}
        else:
            own = (name for name, f in vars(module).items() if getattr(f, "__module__", None) == path)
            functions = {name: getattr(module, name) for name in own if not name.startswith("_")}
    except Exception as error:
        remedy = "; install it, or put its folder into PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
        raise ConfigError(f"{path}: cannot be imported ({type(error).__name__}: {error}){remedy}") from error
    if module.__name__ == path and (whole := kind or _kind_of_module(module)):
        yield path, whole
        return
    kinds = {name: kind or _kind_of_function(f) for name, f in functions.items() if inspect.isfunction(f)}
    if not any(kinds.values()):
        raise ConfigError(
            f"{path}: is no plug-in; a module defines build or load, the first "
            f"arguments of a function are {', '.join(FIRST_ARGUMENT)} or two blocks of rows; give --kind"
        )
    yield from ((f"{module.__name__}.{name}", of) for name, of in kinds.items() if of)


def _module(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path or "." not in path:
            raise
        return None


def _kind_of_module(module: Any) -> str | None:
    from dml_jax.config.modules import ENTRY_POINTS

    if any(hasattr(module, name) for name in ENTRY_POINTS["data"]):
        return "data"
    if not hasattr(module, "build"):
        return None
    return "backbone" if len(inspect.signature(module.build).parameters) == 1 else "method"


def _kind_of_function(function: Callable[..., Any]) -> str | None:
    names = list(inspect.signature(function).parameters)
    if names and names[0] in FIRST_ARGUMENT:
        return FIRST_ARGUMENT[names[0]]
    return "distance" if len(names) == 2 else None


def print_table(title: str, outcomes: list[Any]) -> int:
    """Prints a row for each check; returns how many failed."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE, title=escape(title))
    for heading in ("check", "result", "what failed, or was found", "where", "how to fix it"):
        table.add_column(heading, overflow="fold")
    for one in outcomes:
        result = "failed" if one.problem else "passed" if not one.skipped else "skipped"
        text = one.problem.partition("\n")[0] or one.skipped or one.note
        cells = (one.check, result, text, one.where, one.remedy if one.problem else "")
        table.add_row(*(escape(printable(cell)) for cell in cells), style="red" if one.problem else "")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    console.print(table)
    return sum(bool(one.problem) for one in outcomes)
