"""EfficientNet-Lite0 on a CPU, compared with torch: embeddings, and training with frozen batch norm.

Both get the packaged weights and the same images, and their embeddings must agree. The training step is forward,
backward and Adam.

    python -m benchmarks.efficientnet_lite [--batch=32] [--side=224] [--repeats=10]

The peer needs the package efficientnet-lite-pytorch. Without it our own time of embedding is shown, and the training
step is left out. `embedding.py` compares with onnxruntime.
"""

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import jax
import numpy as np

from benchmarks.backbones import training_step
from benchmarks.timing import Row, installed, row, table
from dml_jax.backbones import efficientnet_lite
from dml_jax.backbones.contract import Backbone
from dml_jax.commands.runtime import keep_freed_memory


def embed_torch(images: np.ndarray) -> Callable[[], np.ndarray]:
    """A call that embeds with torch.

    Raises:
      ImportError: torch or the network is not installed.
    """
    import torch

    from benchmarks.torch_efficientnet import Normalise, PooledFeatures

    network, pixels = torch.nn.Sequential(Normalise(), PooledFeatures()), torch.from_numpy(images)

    def call() -> np.ndarray:
        with torch.inference_mode():
            return network(pixels).numpy()

    return call


def train(side: int, batch: int, backbone: Backbone, repeats: int) -> Row:
    """A row for `timing.table`: a training step with frozen batch norm.

    Raises:
      ImportError: see `embed_torch`.
    """
    from benchmarks.torch_efficientnet import PooledFeatures

    return training_step("EfficientNet-Lite0, frozen batch norm", side, batch, backbone, PooledFeatures(), repeats)


def rows(*, batch: int = 32, side: int = 224, repeats: int = 10) -> list[Row]:
    """A `timing.row` for embedding and one for training; ours keeps its memory between calls, as in the commands.

    Raises:
      AssertionError: the embeddings differ.
    """
    keep_freed_memory()
    images = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    backbone = efficientnet_lite.build(replace(efficientnet_lite.lite0(), pretrained="lite0", freeze_bn=True))
    params, stats = backbone.init(jax.random.key(0), (side, side))
    embed = jax.jit(lambda p, s, x: backbone.apply(p, s, backbone.preprocess(x), train=False)[0].mean(axis=(1, 2)))

    def ours() -> np.ndarray:
        return np.asarray(embed(params, stats, images))

    case, found = f"EfficientNet-Lite0, batch {batch}, {side}²", []
    if theirs := installed(embed_torch, images):
        deviation = np.abs(ours() - theirs()).max() / np.abs(theirs()).max()
        assert deviation < 1e-3, deviation
    found.append(row(f"{case}, embedding, torch", ours, theirs, repeats))
    with suppress(ImportError):
        found.append(train(side, batch, backbone, repeats))
    return found


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--batch", type=int, default=32)
    flags.add_argument("--side", type=int, default=224)
    flags.add_argument("--repeats", type=int, default=10)
    options = flags.parse_args()
    print(table(rows(batch=options.batch, side=options.side, repeats=options.repeats)))
