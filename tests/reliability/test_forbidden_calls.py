"""No code runs from data: no pickles, evaluated text or shells, and no unchecked unpacking, except as reviewed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("dml_jax", "launch", "benchmarks", "configs")
NAMES = {"eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
ATTRIBUTES = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load", "tempfile.mktemp"),
    *("csv.writer", "csv.DictWriter"),  # would write formulas, which spreadsheets run
}
METHODS = {"extractall", "exec_module"}  # of any object
KEYWORDS = {"shell", "allow_pickle"}  # forbidden unless the value is literally False
REVIEWED = {
    ("dml_jax/backbones/weights/tensor_files.py", "pickle"),  # of files with a known SHA-256; nothing is imported
    ("dml_jax/backbones/weights/tensor_files.py", "torch.load"),  # with weights_only=True
    ("dml_jax/config/files.py", "exec"),  # a configuration file is a program of the user
    ("dml_jax/config/files.py", "compile"),
    # zipfile and tarfile's filter keep members inside the folder
    ("dml_jax/data/sources.py", "extractall"),
    ("dml_jax/files.py", "csv.writer"),  # where formulas are escaped
    ("benchmarks/input.py", "extractall"),  # zipfile keeps members inside the folder; the archive is the user's choice
}


def findings(source: str) -> Iterator[str]:
    """What is forbidden in a Python source."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                full = {f"{module}.{alias.name}" for alias in names}
                yield from (full & ATTRIBUTES) or ([module] if module.partition(".")[0] in MODULES else [])
            case ast.FunctionDef(name=name) if name in METHODS:
                yield name
            case ast.Name(id=name) if name in NAMES:
                yield name
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if f"{owner}.{name}" in ATTRIBUTES:
                yield f"{owner}.{name}"
            case ast.Attribute(attr=name) if name in METHODS:
                yield name
            case ast.keyword(arg=str(name), value=value) if name in KEYWORDS:
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield name


@pytest.mark.parametrize("folder", FOLDERS)
def test_only_reviewed_calls(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files or folder == "launch"
    found = {(file.relative_to(ROOT).as_posix(), what) for file in files for what in findings(file.read_text())}
    assert found == {entry for entry in REVIEWED if entry[0].startswith(f"{folder}/")}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("exec('x')", "exec"),
        ("re.compile('x')", None),
        ("os.system('ls')", "os.system"),
        ("np.load(path, allow_pickle=False)", None),
        ("np.load(path, allow_pickle=True)", "allow_pickle"),
        ("subprocess.run('ls', shell=True)", "shell"),
        ("archive.extractall(target)", "extractall"),
    ],
)
def test_the_scan(source: str, wanted: str | None) -> None:
    assert list(findings(source)) == ([wanted] if wanted else [])
