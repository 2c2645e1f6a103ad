"""A paper can be deleted: without its files, and with no other file changed, the rest works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.papers import PAPERS, ROOT, absent, paper_of
from tests.processes import environment

# Every module, every configuration, and the demo of the README.
REST = """
import importlib
from pathlib import Path
from dml_jax import main
for path in sorted(Path("dml_jax").rglob("*.py")) + sorted(Path("configs").rglob("*.py")):
    if path.stem not in ("__main__", "__init__"):
        code = importlib.import_module(".".join(path.with_suffix("").parts))
    if path.parent.name == "configs" and hasattr(code, "get_config"):
        for variant in ("", *getattr(code, "VARIANTS", ())):
            main.execute([f"--config={path}{variant and f':{variant}'}", "--mode=show"])
main.execute(["--config=configs/digits_baseline.py", "--mode=check"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("paper", [paper for paper in PAPERS if not absent(paper)])
def test_the_rest_works_without(paper: str, tmp_path: Path) -> None:
    """In a copy, in which all tests can be collected as well."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if paper_of(name) != paper and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    variables = environment(PYTHONPATH=str(tmp_path))
    for program in (["-c", REST], ["-m", "pytest", "-q", "-n", "0", "--collect-only"]):
        command = [sys.executable, *program]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
