"""Processor time of a first embedding in a fresh process, as a multiple of importing JAX and one compiled call.

    python -m benchmarks.first_embedding [--model=lite0] [--rounds=5]

Both kinds of processes alternate, after one of each that fills the caches of weights and compiled programs; the minimum
of each is compared, because other work on the machine only adds to them.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from sklearn import datasets

JAX = """
import jax, time
jax.jit(lambda x: x @ x)(jax.numpy.ones((8, 8))).block_until_ready()
print(time.process_time())
"""
EMBEDDING = """
import sys, time
import dml_jax
from dml_jax.commands import runtime
runtime.enable_compilation_cache()
dml_jax.load(sys.argv[1]).embed([sys.argv[2]])
print(time.process_time())
"""


def seconds(program: str, *arguments: str) -> float:
    """Processor time that a program prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program, *arguments]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--model", default="lite0", help="as dml_jax.load takes it")
    flags.add_argument("--rounds", type=int, default=5)
    options = flags.parse_args()
    photo = str(Path(datasets.__file__).parent / "images" / "flower.jpg")
    found = [(seconds(JAX), seconds(EMBEDDING, options.model, photo)) for _ in range(options.rounds + 1)][1:]
    least = [min(values) for values in zip(*found, strict=True)]
    print(f"JAX {least[0]:.2f} s, first embedding {least[1]:.2f} s: {least[1] / least[0]:.1f} times")


if __name__ == "__main__":
    main()
