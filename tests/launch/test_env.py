"""launch/env.sh, which creates .venv: two first starts at once, with stand-ins for Python's venv
and pip."""

import os
import subprocess
import sys
from pathlib import Path

from tests.test_main import ROOT

# Creates .venv with a pip that fails if another one is running, and has no uv.
PYTHON = f"""#!/usr/bin/env bash
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p .venv/bin
  cp "$0" .venv/bin/python
elif [ "$1 $2" = "-m pip" ]; then
  [ "${{*: -1}}" = uv ] && exit 1
  mkdir installing || exit 1
  sleep 0.5
  echo "${{*: -1}}" >> installed
  rmdir installing
else
  exec {sys.executable} "$@"
fi
"""


def test_two_first_starts(tmp_path: Path) -> None:
    (tmp_path / "launch").symlink_to(ROOT / "launch")
    for name in ("constraints.txt", "requirements.txt"):
        (tmp_path / name).touch()
    (tmp_path / "stand-in").write_text(PYTHON)
    (tmp_path / "stand-in").chmod(0o755)
    variables = os.environ | {"PYTHON": str(tmp_path / "stand-in"), "PATH": "/usr/bin:/bin"}
    command = ["bash", "-ec", ". launch/env.sh; prepare requirements.txt"]
    options = {
        "cwd": tmp_path,
        "env": variables,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    for _ in range(2):  # the second time, nothing is to be done
        starts = [subprocess.Popen(command, **options) for _ in range(2)]
        outputs = [start.communicate(timeout=60) for start in starts]
        assert [start.returncode for start in starts] == [0, 0], outputs
        assert not any(errors for _, errors in outputs)
    assert (tmp_path / "installed").read_text() == "requirements.txt\n"
    assert len(list((tmp_path / ".venv").glob("installed-*"))) == 1
