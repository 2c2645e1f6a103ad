"""Which files belong to a paper, so that they can be deleted together without changing any other file."""

import importlib
import re
from pathlib import Path, PurePath
from types import ModuleType

ROOT = Path(__file__).parents[1]
PAPERS = ("hist", "mpn", "crt", "diva", "group_loss", "student")


def paper_of(path: str | PurePath) -> str | None:
    """The paper of a path relative to the project: a component is its name, or ends in `_` and its name."""
    for component in PurePath(path).parts:
        for paper in PAPERS:
            if re.fullmatch(rf"(.+_)?{paper}(\.\w+)*", component):
                return paper
    return None


def absent(paper: str) -> bool:
    """Whether the paper's method has been deleted."""
    methods = ROOT / "dml_jax" / "methods"
    return not ((methods / f"{paper}.py").exists() or (methods / paper / "__init__.py").exists())


def modules(folder: Path) -> list[ModuleType]:
    """The modules of papers in a folder of the project: what they add to the tests of all methods."""
    package = ".".join(folder.relative_to(ROOT).parts)
    return [importlib.import_module(f"{package}.{paper}") for paper in PAPERS if (folder / f"{paper}.py").exists()]
