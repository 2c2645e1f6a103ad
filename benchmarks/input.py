"""Throughput of the input pipeline, in images per second, compared with a torch DataLoader that uses Pillow.

Both read the same JPEG files, crop the same boxes (decode, RandomResizedCrop 224, flip) and use the same number of
processes or threads; their pixels are compared first. The batches of torch are uint8 or, as is usual, normalised
floats; dml_jax normalises on the device, which is included in its time. The rows "in a bare loop" are for
reference: threads that read, crop and discard images, without batches, order or device. With one thread, they give the
rate of a core and the cores that a training needs.

Also measured: data sets prepared with --short_side=256, the speed of preparation, the time until the first batch, and
the samplers; and with `--rows` alone, what opening the index of many images costs.

    python -m benchmarks.input --photos=photos.zip [--many=cifar10_images.zip] [--seconds=5]
    python -m benchmarks.input --rows=10000000

The archives are unpacked or prepared in a temporary folder. `--photos` needs no class folders.
"""

import argparse
import contextlib
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import timing
from dml_jax.config import Data
from dml_jax.data import pipeline, samplers, split_metadata, transforms
from dml_jax.data import store as prepared
from dml_jax.data.formats import folder
from dml_jax.data.split import Split, digest
from dml_jax.data.store import file_reader
from dml_jax.train import experiment

BATCH, SIDE, SEED, CLASSES, STEPS = 32, 224, 0, 10, 3_000
ONE_THREAD = "one thread in a bare loop"
NEEDED = (1_000, 5_000, 20_000)  # images per second, for which the cores are printed
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Plan:
    """The file and the random numbers of every image of dml_jax: (step, slot) -> (file, generator)."""

    def __init__(self, sampler: samplers.Sampler, data: Data, files: list[str]) -> None:
        self.indices, self.data, self.files = np.stack([sampler.batch(step) for step in range(STEPS)]), data, files

    def __call__(self, step: int, slot: int) -> tuple[str, np.random.Generator]:
        return self.files[self.indices[step, slot]], np.random.default_rng((SEED, step, slot, 0))


class TorchDataset:
    """The same crops with Pillow and torch."""

    def __init__(self, plan: Plan, flip: float, normalised: bool) -> None:
        self.plan, self.flip, self.normalised = plan, flip, normalised

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, i: int) -> Any:
        import torch

        file, rng = self.plan(*divmod(i, BATCH))
        data = self.plan.data
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        top, left, h, w = transforms.random_resized_box(
            image.height, image.width, data.crop_scale, data.crop_ratio, rng
        )
        image = image.crop((left, top, left + w, top + h)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        if rng.random() < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if not self.normalised:
            return tensor
        mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
        return tensor.float().div(255).sub(mean).div(std)


def torch_batches(plan: Plan, *, workers: int, flip: float = 0.5, normalised: bool = False) -> Iterator[Any]:
    import torch

    options: dict[str, Any] = {"prefetch_factor": 2, "multiprocessing_context": "spawn"} if workers else {}
    dataset: Any = TorchDataset(plan, flip, normalised)
    return iter(torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, **options))


def throughput(batches: Iterator[Any], seconds: float, use: Callable[[Any], Any] = lambda batch: batch) -> float:
    """Images per second after the first three batches; `use` is called with every batch."""
    for _ in range(3):
        use(next(batches))
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        use(next(batches))
        count += BATCH
    return count / (time.perf_counter() - began)


def options(**changes: Any) -> Data:
    crop = {"crop": "random_resized", "image_size": SIDE, "resize": 256, "flip": 0.5}
    return Data(**{"batch_size": BATCH, "images_per_class": 4, "threads": 2, **crop, **changes})


def our_batches(split: Split, data: Data) -> pipeline.BatchReader[Any]:
    sampler = samplers.build(data, split.labels, SEED)
    return pipeline.training(split, sampler, data, seed=SEED, stop=10**6)


def bare_throughput(split: Split, data: Data, seconds: float, threads: int = 2) -> float:
    """Images per second that threads read, crop and resize."""
    transform, total = transforms.training(data), len(split.ids)
    until = time.perf_counter() + seconds

    def work(first: int) -> int:
        rng, count = np.random.default_rng((SEED, first)), 0
        while time.perf_counter() < until:
            transform(split.read((first + count) % total, rng), rng)
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(0, total, -(-total // threads)))) / seconds


def device_step(data: Data, normalised: bool) -> Callable[[Any], Any]:
    """Flips and optionally normalises the images of a batch on the device, as the training step does."""
    import jax

    from dml_jax.backbones import contract
    from dml_jax.data import augment

    preprocess = contract.preprocess(contract.Pixels()) if normalised else lambda images: images
    step = jax.jit(lambda images, key: preprocess(augment.apply(images, key, data)))
    key = jax.random.key(0)
    return lambda batch: jax.block_until_ready(step(batch[0][0], key))


def check_same_pixels(split: Split, data: Data, plan: Plan) -> None:
    """Compares the first batch of both, without flips."""
    with our_batches(split, data) as reader:
        images = next(reader)[0][0]
    theirs = next(torch_batches(plan, workers=0, flip=0.0)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(images, theirs)
    print("dml_jax and torch give the same pixels")


def compare_with_torch(archive: Path, work: Path, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Images per second of all cases, in every round, for the photographs in `archive`."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(work / "photos")
    for i, path in enumerate(sorted(path for path in (work / "photos").rglob("*") if path.is_file())):
        target = work / "classes" / f"class {i % CLASSES}" / path.name  # arbitrary classes, which preparation requires
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    stores = {}
    for name, more in (
        ("prepared", []),
        ("short side 256", ["--short_side=256"]),
        ("short side 256, pixels", ["--short_side=256", "--pixels"]),
    ):
        prepare("folder", work / "classes", work / name, "--skip_bad", "--test_share=0.2", *more)
        stores[name] = folder.load(Data(name="folder", path=str(work / name)))["train"]
    data = options()
    files = [str(work / "classes" / name) for name in stores["prepared"].ids]
    split = stores["prepared"]._replace(read=file_reader(files))
    plan = Plan(samplers.build(data, split.labels, SEED), data, files)
    with_torch = True
    try:
        check_same_pixels(split, data, plan)
    except ImportError:
        with_torch = False

    cases: dict[str, Callable[[], float]] = {}

    def ours_case(split: Split, normalised: bool) -> Callable[[], float]:
        def run() -> float:
            chosen = options()
            with our_batches(split, chosen) as reader:
                return throughput(reader, seconds, device_step(chosen, normalised))

        return run

    if with_torch:
        cases["torch, 2 workers, uint8"] = lambda: throughput(torch_batches(plan, workers=2), seconds)
        cases["torch, 2 workers, normalised floats"] = lambda: throughput(
            torch_batches(plan, workers=2, normalised=True), seconds
        )
    cases["dml_jax, 2 threads, uint8"] = ours_case(split, False)
    cases["dml_jax, 2 threads, normalised floats"] = ours_case(split, True)
    for name, store in stores.items():
        cases[f"dml_jax, 2 threads, uint8, {name}"] = ours_case(store, False)
        cases[f"in a bare loop, {name}"] = partial(bare_throughput, store, data, seconds)
        cases[f"{ONE_THREAD}, {name}"] = partial(bare_throughput, store, data, seconds, 1)
    measured: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):  # cases alternate, so that drift in the speed of the machine affects all of them
        for name, case in cases.items():
            measured[name].append(case())
    return measured


def print_throughput(measured: dict[str, list[float]]) -> None:
    """Prints the result of `compare_with_torch` as a table."""
    base = {kind: f"torch, 2 workers, {kind}" for kind in ("uint8", "normalised floats")}
    print("| case | images/s | relative to torch uint8 | relative to torch normalised |\n|---|---|---|---|")
    for name, values in measured.items():
        ratios = [f"{np.median(np.array(values) / measured[b]):.2f}" if b in measured else "–" for b in base.values()]
        print(f"| {name} | {np.median(values):.0f} | {' | '.join(ratios)} |")
    print("| data set | images/s of a core |", *(f"cores for {rate:,}/s |" for rate in NEEDED))
    print("|---" * (2 + len(NEEDED)) + "|")
    for name, values in measured.items():
        if name.startswith(ONE_THREAD):
            cores = [f"{np.ceil(rate / np.median(values)):.0f} |" for rate in NEEDED]
            print(f"| {name.removeprefix(ONE_THREAD + ', ')} | {np.median(values):.0f} |", *cores)


def rows(photos: Path, *, seconds: float = 3.0, rounds: int = 5) -> list[timing.Row]:
    """One `timing.summary` per case, for one image; the peer is a torch DataLoader of uint8 with two workers."""
    with tempfile.TemporaryDirectory() as work:
        measured = compare_with_torch(photos, Path(work), seconds, rounds)
    peer = 1 / np.array(measured.get("torch, 2 workers, uint8", [np.nan] * rounds))
    ours = {name: 1 / np.array(values) for name, values in measured.items() if not name.startswith("torch")}
    return [timing.summary(f"one image, {name}", values, peer) for name, values in ours.items()]


def prepare(name: str, source: Path, output: Path, *more: str) -> float:
    """Runs dml-jax prepare and returns the seconds it took."""
    flags = [f"--name={name}", f"--source={source}", f"--output={output}", "--quiet", *more]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dml_jax", "prepare", *flags], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


START = """
import sys, time
began = time.perf_counter()
from dml_jax.config import Data
from dml_jax.data import pipeline, samplers
from dml_jax.data.formats import folder
def main():
    data = Data(name="folder", path=sys.argv[1], batch_size=64, images_per_class=16)
    split = folder.load(data)["train"]
    with pipeline.training(split, samplers.build(data, split.labels, 0), data, seed=0, stop=9) as batches:
        next(batches)
        print(time.perf_counter() - began)
main()
"""


def time_preparation(archive: Path, work: Path) -> None:
    """Prints how fast a data set of many small images is prepared, and how soon its first batch is ready."""
    took = prepare("folder", archive, work / "many", "--splits=classes")
    images = sum(split["images"] for split in (prepared.read_marker(work / "many") or {})["splits"].values())
    print(f"prepare: {images} images in {took:.1f} s, {images / took:.0f} per second")
    command = [sys.executable, "-c", START, str(work / "many")]
    start = min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3))
    print(f"from the first import to the first batch: {start:.1f} s")


def time_samplers() -> None:
    """Prints the times of all samplers for the training split of Stanford Online Products."""
    labels = np.repeat(np.arange(11_318), 5 + (np.arange(11_318) < 59_551 - 5 * 11_318))
    print(f"{len(labels)} images of 11318 classes, batches of 90")
    print("| sampler | construction, s | first batch, s | other batches, ms |")
    print("|---|---|---|---|")
    for name in samplers.SAMPLERS:
        clock = [time.perf_counter()]
        sampler = samplers.build(options(sampler=name, batch_size=90, images_per_class=5), labels, SEED)
        sampler.first_step(5)  # the length of five epochs
        clock.append(time.perf_counter())
        sampler.batch(0)
        clock.append(time.perf_counter())
        for step in range(1, 101):
            sampler.batch(step)
        clock.append(time.perf_counter())
        construction, first, others = np.diff(clock)
        print(f"| {name} | {construction:.3f} | {first:.3f} | {others * 10:.2f} |")


def time_opening(rows: int, work: Path) -> None:
    """Prints what the index of a large prepared data set costs, ten images per class, in a process of its own."""
    labels = np.random.default_rng(SEED).permutation(np.repeat(np.arange(rows // 10), 10))
    ids = [f"images/class_{label:07}/photo_{i:08}.jpg" for i, label in enumerate(labels.tolist())]
    classes = [f"class_{label:07}" for label in range(rows // 10)]
    split_metadata.save(work / "index.arrow", {"train": split_metadata.SplitMetadata(labels, ids, classes)})
    print(f"{rows:,} images of {rows // 10:,} classes")
    print("| stage | CPU, s | memory so far, MiB | with mapped files, MiB |\n|---|--:|--:|--:|", flush=True)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_open, args=(work / "index.arrow",))
    process.start()
    process.join()


def _open(index: Path) -> None:
    clock = time.process_time()

    def row(stage: str) -> None:
        nonlocal clock
        status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        own, all_pages = (int(status[key].split()[0]) // 1024 for key in ("RssAnon", "VmRSS"))
        print(f"| {stage} | {time.process_time() - clock:.1f} | {own:,} | {all_pages:,} |", flush=True)
        clock = time.process_time()

    row("imports")
    train = split_metadata.load(index)["train"]
    row("open")
    split = Split(train.labels, train.ids, lambda index, rng: np.zeros((8, 8, 3), np.uint8), train.classes)
    digest({"train": split})
    experiment.check_split("train", split)
    row("digest and checks")
    for name in ("balanced", "shuffled", "mpn"):
        sampler = samplers.build(options(sampler=name, batch_size=128, images_per_class=4), split.labels, SEED)
        row(f"sampler {name}")
        sampler.batch(0)
        row("its first batch")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--photos", type=Path, help="archive of photographs, for the comparison with torch")
    flags.add_argument("--many", type=Path, help="archive of class folders, for the speed of preparation")
    flags.add_argument("--rows", type=int, help="images of an index, e.g. 10000000")
    flags.add_argument("--seconds", type=float, default=5.0, help="per case and round")
    flags.add_argument("--rounds", type=int, default=3, help="of which the median is printed")
    chosen = flags.parse_args()
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if chosen.photos:
            print_throughput(compare_with_torch(chosen.photos, work, chosen.seconds, chosen.rounds))
        if chosen.many:
            time_preparation(chosen.many, work)
        if chosen.rows:
            time_opening(chosen.rows, work)
            return
    time_samplers()


if __name__ == "__main__":
    main()
