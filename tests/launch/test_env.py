"""launch/env.sh, which creates .venv, with stand-ins for Python's venv and pip."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT, executable

# Creates .venv with a pip that fails if another one is running, and has no uv.
PYTHON = f"""
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
fi"""


def test_of_two_first_starts_one_installs(tmp_path: Path) -> None:
    (tmp_path / "launch").symlink_to(ROOT / "launch")
    python = executable(tmp_path / "stand-in", PYTHON)
    variables = os.environ | {"PYTHON": str(python), "PATH": "/usr/bin:/bin"}
    command = ["bash", "-ec", ". launch/env.sh; prepare cpu"]
    for _ in range(2):  # the second time, nothing is to be done
        starts = [subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE) for _ in range(2)]
        assert [(start.communicate(timeout=60)[1], start.returncode) for start in starts] == [(b"", 0)] * 2
    assert (tmp_path / "installed").read_text() == "launch/locks/cpu.txt\n"


# The image v2-alpha-tpuv5-lite is Ubuntu 22.04, whose python3 is 3.10; uv installs another one.
IMAGE_PYTHON = """
case "$*" in
  "-m pip install uv") touch "$HOME/uv" ;;
  "-m uv python install 3.11") [ -e "$HOME/uv" ] && touch "$HOME/installed-python" ;;
  "-m uv python find 3.11") [ -e "$HOME/installed-python" ] && echo "$HOME/python3.11" ;;
  *) exit 3 ;;
esac"""


def test_the_printed_command_installs_on_a_tpu(tmp_path: Path) -> None:
    """The local shell sends a host the command of docs/guides/cluster.md; the host executes it."""
    (line,) = re.findall(r"^gcloud .*prepare tpu.*$", (ROOT / "docs/guides/cluster.md").read_text(), re.MULTILINE)
    home = tmp_path / "home"
    executable(tmp_path / "bin/python3", IMAGE_PYTHON)
    executable(home / "python3.11", PYTHON)
    (home / "dml_jax").mkdir()
    (home / "dml_jax/launch").symlink_to(ROOT / "launch")
    variables = shlex.join([f"HOME={home}", f"PATH={tmp_path}/bin:/usr/bin:/bin"])
    gcloud = executable(
        tmp_path / "local/gcloud",
        f'for last; do :; done; cd "$HOME"\nexec env -i {variables} bash -c "${{last#--command=}}"',
    )
    local = {"PATH": f"{gcloud.parent}:/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(["bash", "-c", line], env=local, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (home / "dml_jax/installed").read_text() == "launch/locks/tpu.txt\n"
