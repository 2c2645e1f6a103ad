"""Embeds many small images: throughput as a share of what reading alone allows, and kills at five moments.

    python -m benchmarks.embedding --workdir=runs/folder_baseline [--images=100000] [--rounds=3]

Generates JPEG files. Reading alone by all cores, the network alone and embedding alternate in one process; compiling
comes first. Where the network shares the cores with reading, it cannot be faster than both in turn. Then
`dml-jax embed` is killed with SIGKILL when 1/6, …, 5/6 of its files are written, continued each time,
and its output compared with that of an uninterrupted command.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import dml_jax
from dml_jax.commands import embed
from dml_jax.data.pipeline import usable_cores
from dml_jax.files import sha256
from dml_jax.inference import inputs
from dml_jax.inference.model import Model
from dml_jax.train.embedding import CHUNK
from tests.data import pictures

SIZE = (120, 160)  # of the images in pixels, unless the model does not crop
DIFFERENT = 1000  # pictures, each in many files


def generate(folder: Path, count: int, size: tuple[int, int]) -> None:
    """Writes JPEG files into folders of at most 1,000."""
    contents = [pictures.encoded(seed, *size, quality=90) for seed in range(min(count, DIFFERENT))]
    for i in range(count):
        file = folder / f"{i // 1000:04d}" / f"{i % 1000:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents[i % DIFFERENT])


def throughput(model: Model, files: list[str], rounds: int) -> None:
    """Prints images per second of reading alone and of embedding, and the ratio of each round."""
    rows = inputs.ROWS
    groups = [files[i : i + rows] for i in range(0, len(files), rows)]

    def read(part: list[str]) -> int:
        return sum(model.read(file).ndim > 0 for file in part)

    def read_all() -> int:
        with ThreadPoolExecutor(usable_cores()) as pool:
            return sum(pool.map(read, [files[i : i + CHUNK] for i in range(0, len(files), CHUNK)]))

    def embed_all() -> int:
        return sum(map(len, model.embed_each(groups)))

    batch = np.stack([model.read(file) for file in files[: model.config.evaluation.batch_size]])

    def compute_all() -> int:
        return sum(len(model.embed_pixels(batch[: len(files) - i])) for i in range(0, len(files), len(batch)))

    for group in groups[:1] + groups[-1:]:  # compiles
        model.embed(group)
    compute_all()
    print("images/s: reading, network, both in turn | embedding, its share of reading, of both in turn", flush=True)
    shares = []
    for _ in range(rounds):
        seconds = []
        for work in (read_all, compute_all, embed_all):
            began = time.perf_counter()
            assert work() == len(files)
            seconds.append((time.perf_counter() - began) / len(files))
        reading, network, both = seconds
        shares.append((reading / both, (reading + network) / both))
        rates = (1 / reading, 1 / network, 1 / (reading + network), 1 / both)
        print("{:.0f} {:.0f} {:.0f} | {:.0f} {:.2f} {:.2f}".format(*rates, *shares[-1]), flush=True)
    print("medians: {:.2f} of reading, {:.2f} of both in turn".format(*np.median(shares, axis=0)), flush=True)


def kill_and_continue(workdir: Path, photos: Path, folder: Path) -> None:
    """Prints whether a command that is killed five times gives the output of an uninterrupted one."""

    def start(name: str) -> subprocess.Popen[bytes]:
        command = ["-m", "dml_jax", "embed", f"--workdir={workdir}", f"--output={folder / name}", str(photos)]
        return subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)

    assert start("whole").wait() == 0
    files = -(-len(embed.image_files([str(photos)])) // inputs.ROWS)
    for part in range(1, 6):
        process = start("killed")
        while process.poll() is None and len(list(folder.glob("killed.parquet/*.parquet"))) < files * part / 6:
            time.sleep(0.05)
        process.kill()
        done = len(list(folder.glob("killed.parquet/*.parquet")))
        print(f"exit code {process.wait()} with {done} of {files} files", flush=True)
    assert start("killed").wait() == 0
    for name in ("embeddings.npy", "ids.json"):
        equal = sha256(folder / "whole" / name) == sha256(folder / "killed" / name)
        print(f"{name}: {'equal, bit for bit' if equal else 'DIFFERENT'}", flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--workdir", type=Path, required=True, help="of the run whose model embeds")
    flags.add_argument("--images", type=int, default=100_000)
    flags.add_argument("--rounds", type=int, default=3)
    options = flags.parse_args()
    model = dml_jax.load(options.workdir)
    with tempfile.TemporaryDirectory() as work:
        photos = Path(work, "photos")
        generate(photos, options.images, model.shape if model.config.data.crop == "none" else SIZE)
        throughput(model, embed.image_files([str(photos)]), options.rounds)
        kill_and_continue(options.workdir, photos, Path(work))


if __name__ == "__main__":
    main()
