"""The layers of the package: a module imports only lower layers; the guide shows them, and the
tree, as they are."""

import ast
import re
from pathlib import Path

from tests.papers import deleted

ROOT = Path(__file__).parents[1] / "dml_jax"
LAYERS = (
    {"errors"},
    {"class_names", "console", "drawing", "files", "numerics"},
    {"buckets", "manifest", "remote"},
    {"config"},
    {"losses"},
    {"data", "backbones", "evaluation"},
    {"methods"},
    {"train"},
    {"export"},
    {"inference"},
    {"analysis"},
    {"serving"},
    {"run"},
    {"lab"},
    {"commands"},
)
COMMANDS = len(LAYERS)


def layer(module: str) -> int:
    if module.endswith(".__main__"):
        return COMMANDS
    part = module.split(".")[1] if "." in module else "__init__"
    return next((i for i, names in enumerate(LAYERS) if part in names), COMMANDS)


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if name.startswith("dml_jax.")]


def test_layers() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(["dml_jax", *path.relative_to(ROOT).with_suffix("").parts])
        own = layer(module)
        for name in imports(path):
            other = layer(name)
            same = name.split(".")[1] == module.split(".")[1]
            assert other < own or same or own == COMMANDS, f"{module} imports {name}"


def test_experiments_are_private() -> None:
    """After training there are a model and tables of embeddings; only `train`, `run` and `lab` know
    experiments."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] not in ("train", "run.py", "lab"):
            assert not [
                name for name in imports(path) if name.startswith("dml_jax.train.experiment")
            ], path


def test_the_guide_shows_the_tree() -> None:
    text = (
        (ROOT.parent / "docs" / "guides" / "extend.md")
        .read_text()
        .partition("## The layout of the code")[2]
    )
    named, parents = set(), [ROOT.parent]
    for line in text.split("```")[1].splitlines()[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        for name in re.split(r",? ", re.split(" {2,}", line.strip())[0]):
            path = parents[depth] / name
            there = path.is_dir() if name.endswith("/") else path.is_file()
            assert there or deleted(str(path.relative_to(ROOT.parent))), line
            named.add(path)
        parents[depth + 1 :] = [path]
    top = {path for path in ROOT.glob("*.py") if path.name != "__init__.py"}
    assert named >= top | {path.parent for path in ROOT.rglob("__init__.py")}
    layers = (
        names.pop() if len(names) == 1 else f"{{{', '.join(sorted(names))}}}"
        for names in map(set, LAYERS)
    )
    assert f"{' < '.join(layers)}." in " ".join(text.split())
