"""One cell of the matrix of faults: a disk that fails during a save."""

import shutil
import subprocess
import sys

import pytest

from tests.test_main import ROOT, environment


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_run_whose_disk_fails_ends_and_continues_bit_for_bit() -> None:
    """The process ends at once, although threads of orbax wait for what was not written."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.faults",
        "cluster",
        "--faults=EIO",
        "--moments=save",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900
    )
    assert "| EIO | save | 75 | requeues | restarts | bit-equal | error: …" in done.stdout, done
    assert done.returncode == 0
