"""A paper can be deleted: without its files, and with no other file changed, the rest of the tests
pass."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.papers import PAPERS, ROOT, absent, paper_of

NEUTRAL = ("config", "train", "evaluation", "losses", "backbones", "data")  # know no method
NAMED = re.compile(rf"\b({'|'.join(PAPERS)})\b", re.IGNORECASE)


def tracked() -> list[str]:
    """The project's files, which git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    ("path", "paper"),
    [
        ("configs/cars_hist.py", "hist"), ("benchmarks/claims/re_mpn/claims.py", "mpn"), ("docs/papers/crt.md", "crt"),  # noqa: E501
        ("tests/golden/data/diva/w_curve.npz", "diva"), ("tests/train/test_group_loss.py", "group_loss"),  # noqa: E501
        ("dml_jax/methods/student.py", "student"), ("tests/data/test_histograms.py", None), ("configs/base.py", None),  # noqa: E501
        ("dml_jax/losses/pair_losses.py", None),
    ],
)  # fmt: skip
def test_what_belongs_to_a_paper(path: str, paper: str | None) -> None:
    assert paper_of(path) == paper


def words(code: str) -> Iterator[str]:
    """The identifiers and strings of a module; not its comments and docstrings, which may cite."""
    tree = ast.parse(code)
    cited = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in cited:
            continue
        for _, value in ast.iter_fields(node):
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    yield text


@pytest.mark.parametrize("code", [
    "hist = 1", "a.MPN", "f(student=1)", "def f(crt): ...", "class DiVA: ...", "x = 'HIST loss'",
    "import a.group_loss", "from a import b as mpn", "f'{a} of mpn'", "def f():\n    global diva",
    "match x:\n    case {**crt}: ...",
])  # fmt: skip
def test_a_name_of_a_method_is_found(code: str) -> None:
    assert any(map(NAMED.search, words(code)))


def test_a_citation_is_allowed() -> None:
    code = '"""As HIST."""\ndef f(history):\n    """Of MPN."""\n    return student_count  # CRT'
    assert not any(map(NAMED.search, words(code)))


def test_what_methods_build_on_names_none() -> None:
    found = set()
    for path in (path for part in NEUTRAL for path in (ROOT / "dml_jax" / part).rglob("*.py")):
        file = path.relative_to(ROOT / "dml_jax").as_posix()
        found |= {(file, word) for word in words(path.read_text()) if NAMED.search(word)}
    assert found == set()


@pytest.mark.slow
@pytest.mark.parametrize("paper", [paper for paper in PAPERS if not absent(paper)])
def test_the_rest_passes_without(paper: str, tmp_path: Path) -> None:
    """In a copy, which uses the compiled programs of this project (JAX_COMPILATION_CACHE_DIR, see
    conftest.py)."""
    copy = tmp_path / "project"
    kept = [name for name in tracked() if paper_of(name) != paper]
    for name in kept:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    assert not (copy / "dml_jax" / "methods" / paper).exists()
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))
    }
    environment |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout[-5000:]
    changed = [name for name in kept if (copy / name).read_bytes() != (ROOT / name).read_bytes()]
    assert changed == []
