"""One cell of the matrix of faults: a disk that fails during a save."""

import shutil

import pytest

from tests.processes import start


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_run_whose_disk_fails_ends_and_continues_bit_for_bit() -> None:
    """The process ends at once, although threads of orbax wait for what was not written."""
    program = ("-m", "benchmarks.faults")
    process = start("cluster", "--faults=EIO", "--moments=save", program=program)
    printed = process.communicate(timeout=900)
    assert "| EIO | save | 75 | requeues | restarts | bit-equal | error: …" in printed[0], printed
    assert process.returncode == 0
