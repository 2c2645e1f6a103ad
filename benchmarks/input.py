"""Throughput of the input pipeline, in images per second, compared with a torch DataLoader that
uses Pillow.

Both read the same JPEG files, crop the same boxes (decode, RandomResizedCrop 224, flip) and use the
same number of processes or threads; their pixels are compared first. The batches of torch are uint8
or, as is usual, normalised floats; dml_jax normalises on the device, which is included in its time.
For reference, the rows "in a bare loop" are threads that read, crop and discard images, without
batches, order or device. With one thread, they show the rate of a core, and so the cores that a
training needs. Data sets prepared with --short_side=256 and worker processes are measured, too.

With --model, only the processor time of each step of reading is measured, which hardly depends on
other work on the machine. An upper bound for machines with more cores follows from it: see `Costs`.

    python -m benchmarks.input --photos=photos.zip [--seconds=5] [--model]

The archive, which needs no class folders, is unpacked and prepared in a temporary folder.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from PIL import Image

from benchmarks import timing
from dml_jax.config import Data
from dml_jax.data import cores, decode, formats, pipeline, samplers, transforms
from dml_jax.data.files import File
from dml_jax.data.prepared_data import file_reader
from dml_jax.data.split import Split

BATCH, SIDE, SEED, CLASSES, STEPS = 32, 224, 0, 10, 3_000
CORES = (1, 2, 8, 12, 26)  # of a process; 26 is an eighth of 208
THREADS = min(cores.usable_cores(), cores.READERS)  # or processes of torch
ONE_THREAD = "one thread in a bare loop"
NEEDED = 1_000  # images per second, for which the cores are printed; more hardly fit into a process
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Plan:
    """The file and the random numbers of every image of dml_jax: (step, slot) -> (file,
    generator)."""

    def __init__(self, sampler: samplers.Sampler, data: Data, files: list[str]) -> None:
        self.indices, self.data, self.files = (
            np.stack([sampler.batch(step) for step in range(STEPS)]),
            data,
            files,
        )

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
        image = image.crop((left, top, left + w, top + h)).resize(
            (SIDE, SIDE), Image.Resampling.BILINEAR
        )
        if rng.random() < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if not self.normalised:
            return tensor
        mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
        return tensor.float().div(255).sub(mean).div(std)


def torch_batches(
    plan: Plan, *, workers: int, flip: float = 0.5, normalised: bool = False
) -> Iterator[Any]:
    import torch

    options: dict[str, Any] = (
        {"prefetch_factor": 2, "multiprocessing_context": "spawn"} if workers else {}
    )
    dataset: Any = TorchDataset(plan, flip, normalised)
    return iter(
        torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, **options)
    )


def throughput(
    batches: Iterator[Any], seconds: float, use: Callable[[Any], Any] = lambda batch: batch
) -> float:
    """Images per second after the first batches; `use` is called with every batch."""
    for _ in range(pipeline.PREFETCHED + 2 * THREADS):  # the first are read by threads
        use(next(batches))
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        use(next(batches))
        count += BATCH
    return count / (time.perf_counter() - began)


def options(**changes: Any) -> Data:
    crop = {"crop": "random_resized", "image_size": SIDE, "resize": 256, "flip": 0.5}
    return Data(
        **{"batch_size": BATCH, "images_per_class": 4, "threads": THREADS, **crop, **changes}
    )


def our_batches(split: Split, data: Data) -> pipeline.BatchReader[Any]:
    sampler = samplers.build(data, split.labels, SEED)
    return pipeline.training(split, sampler, data, seed=SEED, stop=10**6)


def bare_throughput(split: Split, data: Data, seconds: float, threads: int = THREADS) -> float:
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
    """Flips and optionally normalises the images of a batch on the device, as the training step
    does."""
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


def prepared(archive: Path, work: Path) -> dict[str, Split]:
    """The photographs in `archive` as data sets that are prepared in different ways."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(work / "photos")
    for i, path in enumerate(
        sorted(path for path in (work / "photos").rglob("*") if path.is_file())
    ):
        target = (
            work / "classes" / f"class {i % CLASSES}" / path.name
        )  # arbitrary classes, which preparation requires
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    stores = {}
    for name, more in (
        ("prepared", []),
        ("short side 256", ["--short_side=256"]),
        ("short side 256, pixels", ["--short_side=256", "--pixels"]),
    ):
        prepare(work / "classes", work / name, "--test_share=0.2", *more)
        stores[name] = formats.load(Data(name="folder", path=str(work / name)))["train"]
    return stores


def compare_with_torch(
    archive: Path, work: Path, seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Images per second of all cases, in every round, for the photographs in `archive`."""
    stores = prepared(archive, work)
    data = options()
    files = [str(work / "classes" / name) for name in stores["prepared"].ids]
    split = stores["prepared"]._replace(read=file_reader(files, Data()))
    plan = Plan(samplers.build(data, split.labels, SEED), data, files)
    with_torch = True
    try:
        check_same_pixels(split, data, plan)
    except ImportError:
        with_torch = False

    cases: dict[str, Callable[[], float]] = {}

    def ours_case(split: Split, normalised: bool, workers: int = 0) -> Callable[[], float]:
        def run() -> float:
            chosen = options(workers=workers, threads=1 if workers else THREADS)
            with our_batches(split, chosen) as reader:
                return throughput(reader, seconds, device_step(chosen, normalised))

        return run

    if with_torch:
        cases[f"torch, {THREADS} workers, uint8"] = lambda: throughput(
            torch_batches(plan, workers=THREADS), seconds
        )
        cases[f"torch, {THREADS} workers, normalised floats"] = lambda: throughput(
            torch_batches(plan, workers=THREADS, normalised=True), seconds
        )
    cases[f"dml_jax, {THREADS} threads, uint8"] = ours_case(split, False)
    cases[f"dml_jax, {THREADS} threads, normalised floats"] = ours_case(split, True)
    for name, store in stores.items():
        cases[f"dml_jax, {THREADS} threads, uint8, {name}"] = ours_case(store, False)
        cases[f"dml_jax, {THREADS} workers, uint8, {name}"] = ours_case(store, False, THREADS)
        cases[f"in a bare loop, {name}"] = partial(bare_throughput, store, data, seconds)
        cases[f"{ONE_THREAD}, {name}"] = partial(bare_throughput, store, data, seconds, 1)
    measured: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(
        rounds
    ):  # cases alternate, so that drift in the speed of the machine affects all of them
        for name, case in cases.items():
            measured[name].append(case())
    return measured


# Share of the time in which one thread holds Python's lock, by py-spy (record --gil).
LOCKED = {"prepared": 0.21, "short side 256": 0.29, "short side 256, pixels": 0.34}


class Costs(NamedTuple):
    """Milliseconds of processor time for an image, in the order of reading."""

    file: float
    decoding: float
    resizing: float
    rest: float  # random numbers, box, batch, and grain
    handing: float  # to the main process, there, if another one reads
    locked: float  # share of the first four with Python's lock

    @property
    def image(self) -> float:
        return self.file + self.decoding + self.resizing + self.rest

    def by_threads(self, cores: int) -> float:
        """Images per second of a process with this number of cores, whose threads share a lock."""
        return 1000 * min(cores, 1 / self.locked) / self.image

    def by_workers(self, cores: int) -> float:
        """Images per second of a process and its workers, which use all cores."""
        return 1000 * min(cores / (self.image + self.handing), 1 / self.handing)


def costs(split: Split, data: Data, locked: float, images: int = 960) -> Costs:
    """Measured in one thread, and in a process with one worker."""
    spent = dict.fromkeys(("file", "decoding", "resizing"), 0.0)

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            result = function(*arguments, **named)
            spent[stage] += time.thread_time() - began
            return result

        return call

    def read(step: int) -> None:
        rng = np.random.default_rng((SEED, step))
        transform(split.read(step % len(split.ids), rng), rng)

    transform = transforms.training(data)
    for step in range(len(split.ids)):  # fills the operating system's cache
        read(step)
    replaced: list[tuple[Any, str, str]] = [
        (File, "read", "file"),
        (ArrayRecordDataSource, "__getitem__", "file"),
        (decode, "rgb", "decoding"),
        (transforms, "resize", "resizing"),
    ]
    originals = [getattr(owner, name) for owner, name, _ in replaced]
    try:
        for (owner, name, stage), original in zip(replaced, originals, strict=True):
            setattr(owner, name, timed(stage, original))
        for step in range(images):
            read(step)
    finally:
        for (owner, name, _), original in zip(replaced, originals, strict=True):
            setattr(owner, name, original)

    def in_this_process(workers: int, skipped: int) -> float:
        """The costs of an image, without those of the first batches."""
        sampler = samplers.build(data, split.labels, SEED)
        chosen, batches = replace(data, workers=workers, threads=1), skipped + images // BATCH
        began = processor_time()
        with pipeline.training(split, sampler, chosen, seed=SEED, stop=batches) as reader:
            for step, _ in enumerate(reader, 1):
                if step == skipped:
                    began = processor_time()
            return 1000 * (processor_time() - began) / images

    in_this_process(0, 0)  # imports grain
    stages = {stage: 1000 * seconds / images for stage, seconds in spent.items()}
    rest = in_this_process(0, 0) - sum(stages.values())
    handing = in_this_process(1, pipeline.PREFETCHED + 4)
    return Costs(**stages, rest=rest, handing=handing, locked=locked)


def processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def print_model(stores: dict[str, Split]) -> None:
    """Prints the costs, and the upper bounds that follow from them."""
    found = {name: costs(store, options(), LOCKED[name]) for name, store in stores.items()}
    print(f"| ms for an image | {' | '.join(Costs._fields)} |\n|---|{'--:|' * len(Costs._fields)}")
    for name, cost in found.items():
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in cost)} |")
    print("| images/s at most, threads / workers |", *(f"{n} |" for n in CORES))
    print("|---|" + "--:|" * len(CORES))
    for name, cost in found.items():
        cells = [f"{cost.by_threads(n):,.0f} / {cost.by_workers(n):,.0f}" for n in CORES]
        print(f"| {name} | {' | '.join(cells)} |")


def print_throughput(measured: dict[str, list[float]]) -> None:
    """Prints the result of `compare_with_torch` as a table."""
    base = {kind: f"torch, {THREADS} workers, {kind}" for kind in ("uint8", "normalised floats")}
    print(
        "| case | images/s | relative to torch uint8 | relative to torch normalised "
        "|\n|---|---|---|---|"
    )
    for name, values in measured.items():
        ratios = [
            f"{np.median(np.array(values) / measured[b]):.2f}" if b in measured else "–"
            for b in base.values()
        ]
        print(f"| {name} | {np.median(values):.0f} | {' | '.join(ratios)} |")
    print(f"| data set | images/s of a core | cores for {NEEDED:,}/s |\n|---|---|---|")
    for name, values in measured.items():
        if name.startswith(ONE_THREAD):
            rate = np.median(values)
            print(
                f"| {name.removeprefix(ONE_THREAD + ', ')} | {rate:.0f} | "
                f"{np.ceil(NEEDED / rate):.0f} |"
            )


def rows(photos: Path, *, seconds: float = 3.0, rounds: int = 5) -> list[timing.Row]:
    """One `timing.summary` per case, for one image; the peer is a torch DataLoader of uint8 with as
    many workers."""
    with tempfile.TemporaryDirectory() as work:
        measured = compare_with_torch(photos, Path(work), seconds, rounds)
    peer = 1 / np.array(measured.get(f"torch, {THREADS} workers, uint8", [np.nan] * rounds))
    ours = {
        name: 1 / np.array(values)
        for name, values in measured.items()
        if not name.startswith("torch")
    }
    return [timing.summary(f"one image, {name}", values, peer) for name, values in ours.items()]


def prepare(source: Path, output: Path, *more: str) -> None:
    """Runs dml-jax prepare on class folders."""
    flags = ["--name=folder", f"--source={source}", f"--output={output}", "--quiet", *more]
    subprocess.run(
        [sys.executable, "-m", "dml_jax", "prepare", *flags], check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--photos", type=Path, required=True, help="archive of photographs")
    flags.add_argument("--seconds", type=float, default=5.0, help="per case and round")
    flags.add_argument("--rounds", type=int, default=3, help="of which the median is printed")
    flags.add_argument("--model", action="store_true", help="only what follows from the costs")
    chosen = flags.parse_args()
    with tempfile.TemporaryDirectory() as work:
        if chosen.model:
            print_model(prepared(chosen.photos, Path(work)))
            return
        print_throughput(
            compare_with_torch(chosen.photos, Path(work), chosen.seconds, chosen.rounds)
        )


if __name__ == "__main__":
    main()
