"""launch/env.sh, which creates .venv: two first starts at once, and on the image of a TPU, with
stand-ins for Python's venv and pip."""

import os
import re
import shlex
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


# The image v2-alpha-tpuv5-lite is Ubuntu 22.04, whose python3 is 3.10; uv installs another one.
IMAGE_PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-m pip install uv") touch "$HOME/uv" ;;
  "-m uv python install 3.11") [ -e "$HOME/uv" ] && touch "$HOME/installed-python" ;;
  "-m uv python find 3.11") [ -e "$HOME/installed-python" ] && echo "$HOME/python3.11" ;;
  --version) echo Python 3.10.6 ;;
  -c*version_info*) exit 1 ;;
  *) exit 3 ;;
esac
"""


def test_the_printed_command_installs_on_a_tpu(tmp_path: Path) -> None:
    """The local shell gives a host what docs/topics/tpu.md says; the host executes it."""
    guide = (ROOT / "docs/topics/tpu.md").read_text()
    (line,) = re.findall(r"^gcloud .*requirements-tpu\.txt.*$", guide, re.MULTILINE)
    for name, text in (("bin/python3", IMAGE_PYTHON), ("home/python3.11", PYTHON)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    gcloud = tmp_path / "local/gcloud"  # gives the host what follows --command
    gcloud.parent.mkdir()
    host = {"HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    variables = " ".join(shlex.quote(f"{name}={value}") for name, value in host.items())
    gcloud.write_text(
        '#!/bin/bash\nfor last; do :; done; cd "$REMOTE"\n'
        f'exec env -i {variables} bash -c "${{last#--command=}}"\n'
    )
    gcloud.chmod(0o755)
    project = tmp_path / "home/dml_jax"
    project.mkdir()
    (project / "launch").symlink_to(ROOT / "launch")
    for name in ("constraints.txt", "requirements-tpu.txt"):
        (project / name).touch()
    done = subprocess.run(
        ["bash", "-c", line],
        env={"PATH": f"{gcloud.parent}:/usr/bin:/bin", "REMOTE": host["HOME"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (project / "installed").read_text().split() == ["requirements-tpu.txt", "gcsfs"]
