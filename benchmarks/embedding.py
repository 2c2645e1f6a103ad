"""Embeds many JPEG files on a CPU, compared with a loop of Pillow and onnxruntime; the time to the
first answer, and how much of it is the check of the probe; kills.

    python -m benchmarks.embedding --model=lite0 [--images=512] [--size=340x480] [--rounds=3]
    [--kills]

Needs the extra "onnx". The loop, `embed_each` by JAX and by onnxruntime, and reading alone
alternate in one process after compiling. Then fresh processes embed one file. With --kills,
`dml-jax embed` is killed with SIGKILL when 1/6, …, 5/6 of its files are written, continued each
time, and its output compared with that of an uninterrupted command.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

import dml_jax
from dml_jax.data.cores import usable_cores
from dml_jax.data.read_ahead import CHUNK
from dml_jax.files import sha256
from dml_jax.inference import graphs, inputs
from dml_jax.inference.bulk_embedding import ROWS
from dml_jax.inference.embedding_model import EmbeddingModel
from tests.data import pictures

BATCH = 32  # images of the loop at once
RUNTIMES = ("jax", "onnxruntime")
DIFFERENT = 1000  # pictures, each in many files
# What the check of the probe adds to the first answer, which compiles for it as well.
CHECK = """
import sys, time
import dml_jax
from dml_jax.inference.embedding_model import EmbeddingModel
name, runtime, file = sys.argv[1:]
model, check = dml_jax.load(name, runtime=runtime), EmbeddingModel._check_probe
stored, model._unproved = model._unproved, None
model.embed([file])
model._unproved = stored
def timed(*arguments):
    began, used = time.perf_counter(), time.process_time()
    check(*arguments)
    clock, processors = time.perf_counter() - began, time.process_time() - used
    print(f"clock {1000 * clock:.0f}, processors {1000 * processors:.0f}")
EmbeddingModel._check_probe = timed
model.embed([file])
assert model._unproved is None
"""


def generate(folder: Path, count: int, size: tuple[int, int]) -> None:
    """Writes JPEG files into folders of at most 1,000."""
    contents = [pictures.encoded(seed, *size, quality=90) for seed in range(min(count, DIFFERENT))]
    for i in range(count):
        file = folder / f"{i // 1000:04d}" / f"{i % 1000:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents[i % DIFFERENT])


def loop(files: list[str], model: EmbeddingModel, session: onnxruntime.InferenceSession) -> int:
    """What a user would write: Pillow reads each batch, and onnxruntime embeds it on all cores."""
    side, resize = model.data.image_size, model.data.resize
    for start in range(0, len(files), BATCH):
        pixels = []
        for file in files[start : start + BATCH]:
            image = Image.open(file).convert("RGB")
            scale = resize / min(image.size)
            image = image.resize(
                [round(scale * length) for length in image.size], Image.Resampling.BICUBIC
            )
            left, top = ((length - side) // 2 for length in image.size)
            pixels.append(np.asarray(image.crop((left, top, left + side, top + side))))
        session.run(None, {"images": np.stack(pixels)})
    return len(files)


def throughput(name: str, files: list[str], rounds: int) -> None:
    """Prints images per second of the loop and of both runtimes, and their ratios to the loop in
    each round."""
    on_jax, on_graph = (dml_jax.load(name, runtime=runtime) for runtime in ("jax", "onnxruntime"))
    graph = graphs.entry(on_jax.identity)
    assert graph is not None
    session = onnxruntime.InferenceSession(graph / graphs.GRAPH, providers=["CPUExecutionProvider"])
    groups = [files[i : i + ROWS] for i in range(0, len(files), ROWS)]

    def embed_all(model: EmbeddingModel) -> int:
        return sum(map(len, model.embed_each(groups)))

    def read_all() -> int:
        with ThreadPoolExecutor(usable_cores()) as pool:
            parts = [files[i : i + CHUNK] for i in range(0, len(files), CHUNK)]
            return sum(
                pool.map(lambda part: sum(on_jax.read(file).ndim == 3 for file in part), parts)
            )

    works = {
        "loop": partial(loop, files, on_graph, session),
        "jax": partial(embed_all, on_jax),
        "onnxruntime": partial(embed_all, on_graph),
        "reading alone": read_all,
    }
    for group in groups[:1] + groups[-1:]:  # compiles
        on_jax.embed(group)
    shares = []
    for _ in range(rounds):
        rates = {}
        for work, run in works.items():
            began = time.perf_counter()
            assert run() == len(files)
            rates[work] = len(files) / (time.perf_counter() - began)
        shares.append([rates["jax"] / rates["loop"], rates["onnxruntime"] / rates["loop"]])
        each = ", ".join(f"{work} {rate:.0f}" for work, rate in rates.items())
        print(
            f"images/s: {each} | of the loop: jax {shares[-1][0]:.2f}, onnxruntime "
            f"{shares[-1][1]:.2f}",
            flush=True,
        )
    print(
        "medians: jax {:.2f}, onnxruntime {:.2f} of the loop".format(*np.median(shares, axis=0)),
        flush=True,
    )
    print(
        f"load: {' '.join(f'{load:.1f}' for load in os.getloadavg())} on {usable_cores()} cores",
        flush=True,
    )


def first_answer(name: str, file: str, folder: Path, rounds: int) -> None:
    """Prints the seconds of a command in a fresh process: `import jax`, and one embedding by each
    runtime."""
    for number in range(rounds):
        seconds = []
        command = ["-m", "dml_jax", "embed", f"--model={name}", file]
        options = (
            [f"--output={folder / f'{runtime}{number}'}", f"--runtime={runtime}"]
            for runtime in RUNTIMES
        )
        for arguments in (["-c", "import jax"], *([*command, *option] for option in options)):
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
        print(
            "seconds: import jax {:.2f}, first answer jax {:.2f}, onnxruntime {:.2f}".format(
                *seconds
            ),
            flush=True,
        )
        for runtime in RUNTIMES:
            program = [sys.executable, "-c", CHECK, name, runtime, file]
            done = subprocess.run(program, check=True, capture_output=True, text=True)
            print(f"  {runtime}, check of the probe: {done.stdout.strip()} ms", flush=True)


def kill_and_continue(name: str, photos: Path, folder: Path) -> None:
    """Prints whether a command that is killed five times gives the output of an uninterrupted
    one."""

    def start(output: str) -> subprocess.Popen[bytes]:
        command = [
            "-m",
            "dml_jax",
            "embed",
            f"--model={name}",
            f"--output={folder / output}",
            str(photos),
        ]
        return subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)

    assert start("whole").wait() == 0
    files = -(-len(inputs.image_files([str(photos)], print)) // ROWS)
    for part in range(1, 6):
        process = start("killed")
        while (
            process.poll() is None
            and len(list(folder.glob("killed.chunks/*/manifest.json"))) < files * part / 6
        ):
            time.sleep(0.05)
        process.kill()
        done = len(list(folder.glob("killed.chunks/*/manifest.json")))
        print(f"exit code {process.wait()} with {done} of {files} chunks", flush=True)
    assert start("killed").wait() == 0
    for name in ("embeddings.npy", "ids.json"):
        equal = sha256(folder / "whole" / name) == sha256(folder / "killed" / name)
        print(f"{name}: {'equal, bit for bit' if equal else 'DIFFERENT'}", flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--model", default="lite0")
    flags.add_argument("--images", type=int, default=512)
    flags.add_argument("--size", default="340x480", help="of the images in pixels")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--kills", action="store_true")
    options = flags.parse_args()
    with tempfile.TemporaryDirectory() as work:
        photos = Path(work, "photos")
        height, width = map(int, options.size.split("x"))
        generate(photos, options.images, (height, width))
        files = inputs.image_files([str(photos)], print)
        throughput(options.model, files, options.rounds)
        first_answer(options.model, files[0], Path(work), options.rounds)
        if options.kills:
            kill_and_continue(options.model, photos, Path(work))


if __name__ == "__main__":
    main()
