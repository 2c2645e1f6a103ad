"""How long fresh processes take until their first result, and where the time goes.

    python -m benchmarks.start [--runs=3]    writes benchmarks/results/start.json

Processor seconds (user and system) and wall seconds, medians of the runs: `--help`; an image of
Pillow's embedded by EfficientNet-Lite0, whose ONNX graph is in the cache (made first if necessary);
and the metrics of retrieval at the size of CUB's test classes with an empty cache of compiled
programs. Python has compiled all modules before, as an installation does.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import tables
from tests.data import pictures

MARK = "part: "
# Programs print "part: NAME" when a part ends; the first part begins with the interpreter.
PARTS = f"""
import time
def part(name):
    print("{MARK}" + name, time.process_time(), flush=True)
"""
ANSWER = f"""{PARTS}
import sys, numpy, pydantic, dml_jax
part("NumPy and pydantic")
import onnxruntime
part("onnxruntime")
model = dml_jax.load("lite0", runtime="onnxruntime")
part("weights")
model.embed(sys.argv[1:])
part("graph, probe and image")
"""
RETRIEVAL = f"""{PARTS}
from dml_jax.evaluation import metrics
import jax
part("imports")
from benchmarks import evaluation
rows, labels = evaluation.sample(evaluation.CASES["cub"], None, False)
part("data")
metrics.retrieval(rows, labels)
part("first")
metrics.retrieval(rows, labels)
part("second")
"""
MAKE = """
import dml_jax
from dml_jax.inference import graphs
graphs.make(dml_jax.load("lite0"))
"""


def measure(arguments: Sequence[str]) -> tuple[float, float, dict[str, float]]:
    """Processor and wall seconds of a process, and processor seconds by its parts."""
    with tempfile.TemporaryDirectory() as cache:
        variables = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": ""}
        began, before = time.perf_counter(), os.times()
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
        wall, after = time.perf_counter() - began, os.times()
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    ends = [(*line.removeprefix(MARK).rpartition(" "),) for line in lines]
    starts = [0.0, *(float(end) for *_, end in ends)]
    parts = {name: float(end) - start for (name, _, end), start in zip(ends, starts, strict=False)}
    processor = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    return processor, wall, parts


def row(name: str, arguments: Sequence[str], runs: int) -> list[str]:
    """The medians of a process after the first: its line of the table."""
    measure(arguments)
    processor, wall, parts = zip(*(measure(arguments) for _ in range(runs)), strict=True)
    each = {part: statistics.median(found[part] for found in parts) for part in parts[0]}
    shown = ", ".join(f"{part} {seconds:.2f}" for part, seconds in each.items())
    return [name, f"{statistics.median(processor):.2f}", f"{statistics.median(wall):.2f}", shown]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--runs", type=int, default=3)
    runs = flags.parse_args().runs
    with tempfile.TemporaryDirectory() as compiled:
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        write(runs)


def write(runs: int) -> None:
    """Measures all processes, writes the table and prints it."""
    rows = [row("`dml-jax --help`", ["-m", "dml_jax", "--help"], 2 * runs)]
    if importlib.util.find_spec("jax2onnx"):
        subprocess.run([sys.executable, "-c", MAKE], check=True)
        with tempfile.TemporaryDirectory() as folder:
            image = str(pictures.write(Path(folder) / "image.jpg", 0, 340, 480))
            rows.append(row("first answer, with the graph", ["-c", ANSWER, image], 2 * runs))
    else:
        print('the first answer is left out: pip install -e ".[onnx]"')
    rows.append(row("first retrieval, 5,924 × 512", ["-c", RETRIEVAL], runs))
    columns = ["", "processor, s", "wall, s", "parts, processor, s"]
    tables.write("start", "python -m benchmarks.start", columns, rows)
    print(tables.markdown("start"))


if __name__ == "__main__":
    main()
