"""The layers of the package: a module imports only lower layers, and nothing unsafe is called."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "dml_jax"
LAYERS = (
    {"errors"},
    {"console", "files", "numerics"},
    {"remote"},
    {"config"},
    {"losses"},
    {"data", "backbones", "evaluation"},
    {"methods"},
    {"train"},
    {"export"},
    {"inference"},
    {"analysis"},
    {"serving"},
    {"final_results"},
    {"modes", "run"},
    {"studies"},
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


def test_nothing_unsafe() -> None:
    """No unpickling, no evaluation of strings, no shell."""
    forbidden = {"eval", "exec", "compile"}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, f"{path}:{node.lineno}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                assert "pickle" not in names, f"{path}:{node.lineno}"
            if isinstance(node, ast.keyword):
                literal = isinstance(node.value, ast.Constant) and node.value.value
                assert not (node.arg in ("allow_pickle", "shell") and literal), f"{path}:{node.value.lineno}"
