"""launch/env.sh, which creates .venv: two first starts at once, and on the image of a TPU, with
stand-ins for Python's venv and pip."""

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


def checkout(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "launch").symlink_to(ROOT / "launch")


def test_two_first_starts(tmp_path: Path) -> None:
    checkout(tmp_path)
    python = executable(tmp_path / "stand-in", PYTHON)
    variables = os.environ | {"PYTHON": str(python), "PATH": "/usr/bin:/bin"}
    command = ["bash", "-ec", ". launch/env.sh; prepare cpu"]
    pipe = subprocess.PIPE
    for _ in range(2):  # the second time, nothing is to be done
        starts = [subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=pipe, stderr=pipe) for _ in range(2)]
        outputs = [start.communicate(timeout=60) for start in starts]
        assert [start.returncode for start in starts] == [0, 0], outputs
        assert not any(errors for _, errors in outputs)
    assert (tmp_path / "installed").read_text() == "launch/locks/cpu.txt\n"
    assert len([*(tmp_path / ".venv").glob("installed-*")]) == 1


# The image v2-alpha-tpuv5-lite is Ubuntu 22.04, whose python3 is 3.10; uv installs another one.
IMAGE_PYTHON = """
case "$*" in
  "-m pip install uv") touch "$HOME/uv" ;;
  "-m uv python install 3.11") [ -e "$HOME/uv" ] && touch "$HOME/installed-python" ;;
  "-m uv python find 3.11") [ -e "$HOME/installed-python" ] && echo "$HOME/python3.11" ;;
  --version) echo Python 3.10.6 ;;
  -c*version_info*) exit 1 ;;
  *) exit 3 ;;
esac"""


def test_the_printed_command_installs_on_a_tpu(tmp_path: Path) -> None:
    """The local shell gives a host what docs/guides/cluster.md says; the host executes it."""
    guide = (ROOT / "docs/guides/cluster.md").read_text()
    (line,) = re.findall(r"^gcloud .*prepare tpu.*$", guide, re.MULTILINE)
    home = tmp_path / "home"
    executable(tmp_path / "bin/python3", IMAGE_PYTHON)
    executable(home / "python3.11", PYTHON)
    checkout(home / "dml_jax")
    host = {"HOME": str(home), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    variables = " ".join(shlex.quote(f"{name}={value}") for name, value in host.items())
    gcloud = executable(  # gives the host what follows --command
        tmp_path / "local/gcloud",
        f'for last; do :; done; cd "$HOME"\nexec env -i {variables} bash -c "${{last#--command=}}"',
    )
    local = {"PATH": f"{gcloud.parent}:/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(["bash", "-c", line], env=local, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    installed = (home / "dml_jax/installed").read_text()
    assert installed.split() == ["launch/locks/tpu.txt"]
