"""Checks a loss, relation, method, backbone, data set, sampler, optimizer, distance, metric or
test-time refinement:

    dml-jax check mypaper.losses.my_loss [--config.KEY=VALUE …]

Static checks come first: types, shapes and rules (minimising a loss separates classes, every row is
nearest to itself, a sampler reaches all classes). Then the part is trained on the built-in digits,
killed and resumed, and trained on two devices. The table shows which rule failed and where; the
exit code is then 2. As with `train`, modules are imported from the current folder and PYTHONPATH.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax.commands import cli
from dml_jax.errors import ConfigError, counted, printable
from dml_jax.files import expand_path
from dml_jax.lab import plugins

if TYPE_CHECKING:
    from dml_jax.lab.conformance import Outcome


def execute(arguments: list[str]) -> None:
    """Reads the command line, runs the checks and prints the table."""
    flags = cli.Parser(__doc__)
    flags.add_argument("module", metavar="MODULE", help="import path of a module or function")
    kind_help = "default: recognised by its functions and their arguments"
    flags.add_argument("--kind", choices=tuple(plugins.KEYS), help=kind_help)
    kept_help = "keep the runs in this directory (default: remove them)"
    flags.add_argument("--workdir", metavar="DIRECTORY", help=kept_help)
    alone_help = "only the static checks, without training"
    flags.add_argument("--alone", action="store_true", help=alone_help)
    options, overrides = flags.read(arguments)
    kept_in = expand_path("--workdir", options.workdir) if options.workdir else None
    sys.path.insert(0, "")
    selected = plugins.find_plugins(options.module, options.kind)
    from dml_jax.lab import conformance

    failed = 0
    for path, kind in selected:
        with tempfile.TemporaryDirectory(prefix="dml-jax-check-") as folder:
            directory = None if options.alone else kept_in or Path(folder)
            outcomes = conformance.check(path, kind, overrides, directory)
        print_table(f"{kind} {path}", outcomes)
        failed += sum(outcome.result == "failed" for outcome in outcomes)
    if failed:
        raise ConfigError(f"{options.module}: {counted(failed, 'check')} failed")


def print_table(title: str, outcomes: list[Outcome]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from dml_jax.console import Console

    table = Table(box=box.SIMPLE, title=escape(title))
    for heading in ("rule", "result", "error", "where"):
        table.add_column(heading, overflow="fold")
    for outcome in outcomes:
        cells = (outcome.check, outcome.result, outcome.text, outcome.where)
        style = "red" if outcome.result == "failed" else ""
        table.add_row(*(escape(printable(cell)) for cell in cells), style=style)
    console = Console().rich
    if not console.is_terminal:
        console.width = 160
    console.print(table)
