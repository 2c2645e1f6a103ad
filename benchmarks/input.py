"""Images a second from JPEG files to batches, beside a torch DataLoader that does the same with Pillow.

Both read the same files, cut the same boxes (decode, RandomResizedCrop 224, flip) and use the same number of processes
or threads; their pixels are compared first. torch's batches are taken as uint8 and, as is its custom, as normalised
floats; ours leave normalising to the device, which is timed too. Then a data set prepared with --short_side=256, how
fast a data set is prepared, how soon its first batch comes, and how long samplers take. The rows "in a bare loop" are
two threads that do to each image what ours does and throw it away: no batches, no order, no device.

    python -m benchmarks.input --photos=photos.zip [--many=cifar10_images.zip] [--seconds=5]

Each .zip is unpacked or prepared in a temporary folder; the photographs need no classes.
"""

import argparse
import contextlib
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

from dml_jax.config import Data
from dml_jax.data import pipeline, prepared, samplers, transforms
from dml_jax.data.datasets import folder
from dml_jax.data.prepared import ImageFiles
from dml_jax.data.split import Split

BATCH, SIDE, SEED, CLASSES, STEPS = 32, 224, 0, 10, 3_000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Boxes:
    """What the peer needs to cut the same boxes: (step, slot) -> (file, random numbers)."""

    def __init__(self, sampler: samplers.Sampler, data: Data, files: list[str]) -> None:
        self.plan, self.data, self.files = np.stack([sampler.batch(step) for step in range(STEPS)]), data, files

    def __call__(self, step: int, slot: int) -> tuple[str, np.random.Generator]:
        return self.files[self.plan[step, slot]], np.random.default_rng((SEED, step, slot, 0))


class Peer:
    """The torch dataset: Pillow alone."""

    def __init__(self, boxes: Boxes, flip: float, normalised: bool) -> None:
        self.boxes, self.flip, self.normalised = boxes, flip, normalised

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, i: int) -> Any:
        import torch

        file, rng = self.boxes(*divmod(i, BATCH))
        data = self.boxes.data
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


def peer(boxes: Boxes, *, workers: int, flip: float = 0.5, normalised: bool = False) -> Iterator[Any]:
    import torch

    ahead: dict[str, Any] = {"prefetch_factor": 2, "multiprocessing_context": "spawn"} if workers else {}
    dataset: Any = Peer(boxes, flip, normalised)
    return iter(torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, **ahead))


def rate(batches: Iterator[Any], seconds: float, use: Callable[[Any], Any] = lambda batch: batch) -> float:
    """Images a second once the first three batches are there."""
    for _ in range(3):
        use(next(batches))
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        use(next(batches))
        count += BATCH
    return count / (time.perf_counter() - begun)


def options(**changes: Any) -> Data:
    crop = {"crop": "random_resized", "image_size": SIDE, "resize": 256, "flip": 0.5}
    return Data(**{"batch_size": BATCH, "images_per_class": 4, "threads": 2, **crop, **changes})


def ours(split: Split, data: Data) -> Any:
    sampler = samplers.build(data, split.labels, SEED)
    return pipeline.training(split, sampler, data, seed=SEED, stop=10**6)


def bare(split: Split, data: Data, seconds: float) -> float:
    """Images a second that two threads read, cut and resize."""
    transform, images = transforms.training(data), len(split.ids)
    until = time.perf_counter() + seconds

    def work(first: int) -> int:
        rng, count = np.random.default_rng((SEED, first)), 0
        while time.perf_counter() < until:
            transform(split.read((first + count) % images, rng), rng)
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(work, (0, images // 2))) / seconds


def device(data: Data, normalised: bool) -> Callable[[Any], Any]:
    """Flips, and if wanted normalises, as the training step does."""
    import jax

    from dml_jax.backbones import pixels
    from dml_jax.data import augment

    preprocess = pixels.preprocess(pixels.Pixels()) if normalised else lambda images: images
    step = jax.jit(lambda images, key: preprocess(augment.images(images, key, data)))
    key = jax.random.key(0)
    return lambda batch: jax.block_until_ready(step(batch[0][0], key))


def same_pixels(split: Split, data: Data, boxes: Boxes) -> None:
    """Both sides' first batch, before flips."""
    with ours(split, data) as reader:
        images = next(reader)[0][0]
    theirs = next(peer(boxes, workers=0, flip=0.0)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(images, theirs)
    print("the pixels of both sides are equal")


def photographs(archive: Path, work: Path, seconds: float, rounds: int) -> None:
    with zipfile.ZipFile(archive) as file:
        file.extractall(work / "photos")
    for i, path in enumerate(sorted(path for path in (work / "photos").rglob("*") if path.is_file())):
        target = work / "classes" / f"class {i % CLASSES}" / path.name  # dealt into a few, to be prepared
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    stores = {}
    for name, more in (
        ("prepared", []),
        ("short side 256", ["--short_side=256"]),
        ("short side 256, pixels", ["--short_side=256", "--pixels"]),
    ):
        prepare_seconds("folder", work / "classes", work / name, "--skip_bad", "--test_share=0.2", *more)
        stores[name] = folder.load(Data(name="folder", path=str(work / name)))["train"]
    data = options()
    files = [str(work / "classes" / name) for name in stores["prepared"].ids]
    split = stores["prepared"]._replace(read=ImageFiles(files))
    boxes = Boxes(samplers.build(data, split.labels, SEED), data, files)
    with_torch = True
    try:
        same_pixels(split, data, boxes)
    except ImportError:
        with_torch = False

    cases: dict[str, Callable[[], float]] = {}

    def ours_case(split: Split, normalised: bool, **changes: Any) -> Callable[[], float]:
        def run() -> float:
            chosen = options(**changes)
            with ours(split, chosen) as reader:
                return rate(reader, seconds, device(chosen, normalised))

        return run

    if with_torch:
        cases["torch, 2 workers, uint8"] = lambda: rate(peer(boxes, workers=2), seconds)
        cases["torch, 2 workers, normalised floats"] = lambda: rate(peer(boxes, workers=2, normalised=True), seconds)
    cases["dml_jax, 2 threads, uint8"] = ours_case(split, False)
    cases["dml_jax, 2 threads, normalised floats"] = ours_case(split, True)
    cases["dml_jax, 2 workers, uint8"] = ours_case(split, False, workers=2)
    for name, store in stores.items():
        cases[f"dml_jax, 2 threads, uint8, {name}"] = ours_case(store, False)
        cases[f"in a bare loop, {name}"] = partial(bare, store, data, seconds)
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):  # all cases in turn, so that a machine whose speed drifts favours none
        for name, case in cases.items():
            found[name].append(case())
    base = {kind: f"torch, 2 workers, {kind}" for kind in ("uint8", "normalised floats")}
    print("| case | images/s | times torch uint8 | times torch normalised |\n|---|---|---|---|")
    for name, values in found.items():
        ratios = [f"{np.median(np.array(values) / found[b]):.2f}" if b in found else "–" for b in base.values()]
        print(f"| {name} | {np.median(values):.0f} | {' | '.join(ratios)} |")


def prepare_seconds(name: str, source: Path, output: Path, *more: str) -> float:
    """Seconds that the command takes."""
    flags = [f"--name={name}", f"--source={source}", f"--output={output}", "--threads=2", "--quiet", *more]
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dml_jax.prepare", *flags], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


START = """
import sys, time
begun = time.perf_counter()
from dml_jax.config import Data
from dml_jax.data import pipeline, sampling
from dml_jax.data.datasets import folder
def main():
    data = Data(name="folder", path=sys.argv[1], batch_size=64, images_per_class=16)
    split = folder.load(data)["train"]
    with pipeline.training(split, sampling.build(data, split.labels, 0), data, seed=0, stop=9) as batches:
        next(batches)
        print(time.perf_counter() - begun)
main()
"""


def many(archive: Path, work: Path) -> None:
    took = prepare_seconds("folder", archive, work / "many", "--splits=classes")
    images = sum(split["images"] for split in (prepared.read_marker(work / "many") or {})["splits"].values())
    print(f"prepare: {images} images in {took:.1f} s, {images / took:.0f} a second")
    command = [sys.executable, "-c", START, str(work / "many")]
    start = min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3))
    print(f"from starting Python's imports to the first batch: {start:.1f} s")


def samplers() -> None:
    """Stanford Online Products' training split, all samplers."""
    labels = np.repeat(np.arange(11_318), 5 + (np.arange(11_318) < 59_551 - 5 * 11_318))
    print(f"| sampler of {len(labels)} images, 11318 classes, batches of 90 | ready, s | first batch, s | others, ms |")
    print("|---|---|---|---|")
    for name in samplers.SAMPLERS:
        clock = [time.perf_counter()]
        sampler = samplers.build(options(sampler=name, batch_size=90, images_per_class=5), labels, SEED)
        sampler.start(5)  # how long a run of five epochs is
        clock.append(time.perf_counter())
        sampler.batch(0)
        clock.append(time.perf_counter())
        for step in range(1, 101):
            sampler.batch(step)
        clock.append(time.perf_counter())
        ready, first, others = np.diff(clock)
        print(f"| {name} | {ready:.3f} | {first:.3f} | {others * 10:.2f} |")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--photos", type=Path)
    flags.add_argument("--many", type=Path)
    flags.add_argument("--seconds", type=float, default=5.0)
    flags.add_argument("--rounds", type=int, default=3)
    chosen = flags.parse_args()
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if chosen.photos:
            photographs(chosen.photos, work, chosen.seconds, chosen.rounds)
        if chosen.many:
            many(chosen.many, work)
    samplers()


if __name__ == "__main__":
    main()
