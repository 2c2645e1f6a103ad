"""The layers of the package: a module imports only lower layers, and no two modules import each
other; imports inside functions count, those for type checking do not."""

import ast
import re
import tokenize
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from docs.images import make
from tests.layers import LAYERS
from tests.papers import PAPERS

ROOT = Path(__file__).parents[1] / "dml_jax"
COMMANDS = len(LAYERS)
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def layer(module: str) -> int:
    if module.endswith(".__main__"):
        return COMMANDS
    part = module.split(".")[1] if "." in module else "__init__"
    return next((i for i, names in enumerate(LAYERS) if part in names), COMMANDS)


class Imports(ast.NodeVisitor):
    """Collects the modules of this package that a module imports."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {alias.name for alias in node.names} & MODULES.keys()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            self.found |= {whole if whole in MODULES else node.module} & MODULES.keys()


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The modules that each module imports, without itself."""
    imported = {}
    for name, path in MODULES.items():
        imports = Imports()
        imports.visit(ast.parse(path.read_text()))
        imported[name] = imports.found - {name}
    # Converts packaged weights when they are used for the first time.
    imported["dml_jax.backbones.weights.converted"] -= {
        "dml_jax.backbones.weights.convert",
        "dml_jax.backbones.weights.tensor_files",
    }
    # Its workers load a model as users do.
    imported["dml_jax.inference.ray_engine"].remove("dml_jax")
    return imported


def test_layers(graph: dict[str, set[str]]) -> None:
    wrong = []
    for module, found in graph.items():
        for name in sorted(found):
            same = name.split(".")[1:2] == module.split(".")[1:2]
            if not (layer(name) < layer(module) or same or layer(module) == COMMANDS):
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_no_circles(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1][::-1]))


def test_experiments_are_private(graph: dict[str, set[str]]) -> None:
    """After training there are a model and tables of embeddings; only `train`, `run` and `lab` know experiments."""
    for name, found in graph.items():
        if not name.startswith(("dml_jax.train", "dml_jax.run", "dml_jax.lab")):
            assert "dml_jax.train.experiment" not in found, name


def test_what_methods_build_on_names_none() -> None:
    """But in comments and docstrings, which may cite."""
    named = re.compile(rf"\b({'|'.join(PAPERS)})\b", re.IGNORECASE)
    found, starts = set(), (tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for part in ("config", "train", "evaluation", "losses", "backbones", "data"):
        for path in (ROOT / part).rglob("*.py"):
            before = tokenize.ENCODING
            with path.open("rb") as file:
                for token in tokenize.tokenize(file.readline):
                    if token.type in (tokenize.COMMENT, tokenize.NL):
                        continue
                    cites = token.type == tokenize.STRING and before in starts
                    if not cites and named.search(token.string):
                        found.add((path.name, token.string))
                    before = token.type
    assert found == set()


def test_the_drawing_of_the_architecture_is_current() -> None:
    """Otherwise, run python docs/images/make.py layers."""
    drawing = ROOT.parent / "docs/images/layers.svg"
    assert drawing.read_text(encoding="utf-8") == make.layers()
