"""Runs a module as `python -m` does, in a process that never outlives the one that started it:

    python -m dml_jax.studies.child MODULE ARGUMENT …

The standard input is a pipe, whose other end the system closes when the other process has ended, for whatever reason.
"""

import os
import runpy
import signal
import sys
import threading


def _end_with_the_other() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # also the workers that read images


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
