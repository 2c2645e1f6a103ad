"""What `paper.py` in the folder of a paper states: its tables and figures, the command for each,
and what a command cannot reproduce. The site has a page for each paper, generated from this,
`published.csv` and the files named here.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import dml_jax

ANALYSE = "dml-jax analyse --model=runs/NAME --what="
COMPARE = "dml-jax analyse --model=runs/NAME --compare={} --what={}"
FIGURES = "python -m benchmarks.papers.{} runs/NAME"
CAPTURE = "Illustrations of the method, without numbers."


class Place(NamedTuple):
    """A table or a figure.

    Attributes:
      name: "Table 3".
      about: content, in a few words.
      commands: to reproduce it; NAME and OTHER are finished runs.
      note: differences from the paper, or why there is no command.
    """

    name: str
    about: str
    commands: tuple[str, ...] = ()
    note: str = ""


class Paper(NamedTuple):
    """A paper or a reproduction.

    Attributes:
      title: heading of the page.
      source: the name in `published.csv`.
      limits: unpublished conditions of its numbers, or conditions not followed here.
      places: its tables and figures, in their order.
    """

    title: str
    source: str
    limits: tuple[str, ...]
    places: tuple[Place, ...]


def stating(file: str) -> dict[str, ModuleType]:
    """The modules of this name in the folders of papers, by the name of the folder."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob(f"*/{file}.py"))
    return {name: import_module(f"configs.{name}.{file}") for name in folders}


def installed(method: str) -> bool:
    """Whether the package has a method: papers compare with each other's, and each can be
    deleted."""
    methods = Path(dml_jax.__file__).parent / "methods"  # importing them would import JAX
    return (methods / method).is_dir() or (methods / f"{method}.py").is_file()


def studies(*names: str) -> tuple[str, ...]:
    """The commands of studies."""
    return tuple(f"dml-jax study --study={name} --protocol=paper" for name in names)


def runs(*names: str) -> tuple[str, ...]:
    """The commands of configurations, as far as their methods are installed."""
    named = [(name, name.partition(":")[0].partition("_")[2]) for name in names]  # with the method
    return tuple(
        f"python -m dml_jax.main --config={name} --protocol=paper"
        for name, own in named
        if installed(own)
    )


DATA = ("cub", "cars", "sop", "inshop")


def known() -> dict[str, Paper]:
    """The papers and reproductions that have a folder here, by its name."""
    return {name: module.PAPER for name, module in stating("paper").items()}
