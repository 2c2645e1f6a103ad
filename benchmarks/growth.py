"""How processor time and memory grow with the work.

    python -m benchmarks.growth     writes benchmarks/results/growth.json
    python -m benchmarks.growth --only=classify,listing

Each of ten jobs runs at three sizes, each in a process of its own: once to import and to compile,
and then to measure the processor time of all threads, and the peak of the memory beyond what was
held. The table compares the exponents of growth with the expected ones; `!` marks those that exceed
them by more than `TOLERANCE`. Takes five minutes on a quiet machine.
"""

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from benchmarks import tables

TOLERANCE = 0.3
CONSTANT = 0.1  # growth from the first size to the third, as a share, that is ignored
ENOUGH = 1.0  # seconds
WIDTH, OF_CLASS = 64, 20  # of embeddings; images of a class
# Threads that wait for others would count as work.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
FIGURES = "processor, s", "memory, MiB"
COLUMNS = "", "sizes", *(cell for name in FIGURES for cell in (name, "exponent", "must be"))


class Job(NamedTuple):
    """A job of a size, which may use a folder; its smallest size, which is doubled twice; and the
    exponents that its processor time and its memory must have."""

    run: Callable[[int, Path], object]
    smallest: int
    time: float
    memory: float


@cache
def embedded(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 [N, WIDTH] of classes of `OF_CLASS` images, and their labels."""
    rng, labels = np.random.default_rng(0), np.arange(count) // OF_CLASS
    rows = rng.normal(size=(labels[-1] + 1, WIDTH))[labels] + rng.normal(size=(count, WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def evaluation(count: int, folder: Path) -> None:
    from dml_jax.evaluation import metrics

    metrics.retrieval(*embedded(count))


def k_means(count: int, folder: Path) -> None:
    from dml_jax.evaluation import kmeans

    rows, _ = embedded(count)
    kmeans.fit(rows, 100, init=rows[:100], max_iterations=10)


def ami(count: int, folder: Path) -> None:
    """As many different sizes of classes and of clusters as N rows allow: about sqrt(2 N)."""
    from dml_jax.evaluation import clustering

    sizes = np.arange(1, int((2 * count) ** 0.5))
    labels = np.repeat(sizes, sizes)
    clustering.ami(labels, np.random.default_rng(0).permutation(labels))


def enrolled(count: int) -> Any:
    """An index of embeddings, without other classes."""
    from dml_jax.evaluation.open_set import Photographs
    from dml_jax.inference.enrolled import Enrolled
    from dml_jax.inference.index import Index

    rows, labels = embedded(count)
    none = Photographs(rows[:0], *np.zeros((2, 0), np.str_))
    model: Any = SimpleNamespace(method_distance="", training_classes=list)
    named = zip(map(str, labels), rows, strict=True)
    items = [Enrolled(name, f"{i}.jpg", str(i), "", row) for i, (name, row) in enumerate(named)]
    return Index(model, items, none)


def index(count: int, folder: Path) -> None:
    """Enrols images; fits and measures their classifier, which has N^2 / OF_CLASS scores."""
    assert enrolled(count).fitted


def classify(count: int, folder: Path) -> None:
    """Asks an index of 200 images."""
    enrolled(200).classify(embedded(count)[0])


def listing(count: int, folder: Path) -> None:
    """Recognises the classes of a folder of class folders."""
    from dml_jax.data import formats

    if not any(folder.iterdir()):
        for i in range(count):
            file = folder / f"class{i // OF_CLASS}" / f"{i}.jpg"
            file.parent.mkdir(exist_ok=True)
            file.touch()
    formats.class_folders([str(folder)])


def near_duplicates(count: int, folder: Path) -> None:
    """Random patches on white."""
    from dml_jax.data import near_copies

    images = np.full((count, 64, 64, 3), 255, np.uint8)
    patches = np.random.default_rng(0).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    images[:, 16:48, 16:48] = patches.repeat(8, axis=1).repeat(8, axis=2)
    near_copies.find_copies(np.stack([near_copies.thumbnail(image) for image in images]))


def photographs(count: int, folder: Path) -> list[str]:
    """Names in the folder of small images, which are written once."""
    from tests.data import pictures

    if not any(folder.glob("*.jpg")):
        for i in range(count):
            pictures.write(folder / f"{i}.jpg", i)
    return [f"{i}.jpg" for i in range(count)]


def catalogue(count: int, folder: Path) -> None:
    """Compares images by all pairs of up to `examined_images.LARGEST`; writes table and page."""
    from dml_jax.analysis import catalogue, catalogue_page, examined_images

    names, (rows, labels) = photographs(count, folder), embedded(count)
    images = examined_images.examine(folder, names, names, rows, [""] * count)
    found = catalogue.Catalogue(images, [str(label) for label in labels])
    found.write(folder / "catalogue.csv")
    catalogue_page.write(found, "growth", folder / "catalogue.html")


@cache
def engine() -> Any:
    import dml_jax
    from dml_jax.inference import bulk_embedding

    return bulk_embedding.local_engine(dml_jax.load("lite0", runtime="jax"))


def embed(count: int, folder: Path) -> None:
    """Embeds files by published weights."""
    from dml_jax.inference import bulk_embedding

    files = [str(folder / name) for name in photographs(count, folder)]
    with tempfile.TemporaryDirectory() as output:
        bulk_embedding.embed_files(engine(), files, Path(output) / "rows", quiet=True)


def report(count: int, folder: Path) -> None:
    """The standard analyses of a run, their figures and their sections of the page."""
    from dml_jax.analysis import findings
    from dml_jax.analysis.run_report import ANALYSES, STANDARD
    from tests.analysis.runs import Run

    rows, labels = embedded(count)
    run = Run(rows, labels, [str(label) for label in range(labels[-1] + 1)])
    for name in STANDARD:
        findings.write_analysis(folder, name, name, 0, {"": ANALYSES[name][1](run, "test")})


JOBS = {
    "evaluation": Job(evaluation, 8000, 2, 1),
    "k-means": Job(k_means, 160000, 1, 1),
    "AMI": Job(ami, 100000, 1.5, 1),
    "index": Job(index, 1500, 2, 2),
    "classify": Job(classify, 20000, 1, 1),
    "listing": Job(listing, 16000, 1, 1),
    "near-duplicates": Job(near_duplicates, 1000, 1, 1),
    "catalogue": Job(catalogue, 500, 2, 2),
    "embed": Job(embed, 64, 1, 0),
    "report": Job(report, 4000, 2, 1),
}


def memory(field: str) -> int:
    """Bytes of this process: "VmRSS" now, or "VmHWM" at most."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def measure(job: Job, size: int) -> tuple[float, float]:
    """Least processor seconds of a run after the first, within `ENOUGH` seconds; MiB of one."""
    with tempfile.TemporaryDirectory() as folder:
        job.run(size, Path(folder))
        ctypes.CDLL(None).malloc_trim(0)  # what the first run freed is not held
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        held, peak, seconds = memory("VmRSS"), 0, list[float]()
        while sum(seconds) < ENOUGH:
            began = time.process_time()
            job.run(size, Path(folder))
            seconds.append(time.process_time() - began)
            peak = peak or memory("VmHWM")
        return min(seconds), (peak - held) / 2**20


def exponent_of_time(values: Sequence[float]) -> float:
    """e of a + b N^e through the values at N, 2 N and 4 N; 0 if they hardly grow."""
    first, second, third = values
    if third - first <= CONSTANT * third:
        return 0.0
    return float(np.log2(max(third - second, third / 100) / max(second - first, third / 100)))


def exponent_of_memory(values: Sequence[float]) -> float:
    """e of b N^e through the last two values: a peak is the largest of several phases, not their
    sum, so the first value may belong to a phase that does not grow."""
    return max(0.0, float(np.log2(values[2] / values[1])))


def row(name: str) -> list[str]:
    job, found = JOBS[name], []
    sizes = [job.smallest << i for i in range(3)]
    for size in sizes:
        command = [sys.executable, "-m", "benchmarks.growth", f"--only={name}", f"--size={size}"]
        options: Any = {"stdout": subprocess.PIPE, "env": os.environ | ONE_THREAD}
        done = subprocess.run(command, check=True, **options)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    cells = [name, ", ".join(f"{size:,}" for size in sizes)]
    times, peaks = zip(*found, strict=True)
    for values, digits, grown, must in (
        (times, 2, exponent_of_time(times), job.time),
        (peaks, 0, exponent_of_memory(peaks), job.memory),
    ):
        shown = ", ".join(f"{value:.{digits}f}" for value in values)
        cells += [shown, f"{grown:.2f}{' !' * (grown > must + TOLERANCE)}", f"{must:g}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="jobs, separated by commas; stores nothing")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)  # of one job, in this process
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(JOBS)
    if options.size:
        print(json.dumps(measure(JOBS[chosen[0]], options.size)))
        return
    rows = []
    for name in chosen:
        rows.append(row(name))
        print(" | ".join(rows[-1]), flush=True)
    if not options.only:
        tables.write("growth", "python -m benchmarks.growth", COLUMNS, rows)


if __name__ == "__main__":
    main()
