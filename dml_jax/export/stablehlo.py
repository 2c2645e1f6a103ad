"""The trained embedding function as one StableHLO file that needs nothing of this package to run.

In a bare Python with jax (and flatbuffers, a small package that jax.export reads files with):

    import jax.export
    embed = jax.export.deserialize(open("model.stablehlo", "rb").read()).call
    embeddings = embed(images)        # uint8 [B, H, W, 3] -> [B, D], any B
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from dml_jax.files import atomic_write

Embed = Callable[[jax.Array], jax.Array]

PLATFORMS = ("cpu", "cuda", "tpu")


def write(path: Path, embed: Embed, image_shape: tuple[int, int], *, platforms: Sequence[str] = PLATFORMS) -> None:
    """Exports an embedding function; the file appears whole or not at all.

    Args:
      path: of the file.
      embed: uint8 [B, H, W, 3] -> float [B, D]; what it closes over (parameters, statistics) becomes part of the file.
      image_shape: (H, W) in pixels, fixed in the file; B stays open.
      platforms: where the file shall run.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *image_shape, 3), jnp.uint8)
    data = jax.export.export(jax.jit(embed), platforms=platforms)(images).serialize()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_bytes(data)


def read(path: Path) -> Embed:
    """The function in a file that `write` made."""
    return jax.export.deserialize(bytearray(path.read_bytes())).call


def deviation(path: Path, embed: Embed, image_shape: tuple[int, int], batches: Sequence[int] = (1, 3)) -> float:
    """How far the file is from the function it was made of, on random pixels.

    Args:
      path: written by `write`.
      embed: the function.
      image_shape: (H, W) in pixels.
      batches: numbers of images to try.

    Returns:
      The largest absolute difference, divided by the largest absolute entry.
    """
    exported = jax.jit(read(path))
    rng, worst = np.random.default_rng(0), 0.0
    for size in batches:
        images = rng.integers(0, 256, (size, *image_shape, 3), dtype=np.uint8)
        ours, theirs = np.asarray(jax.jit(embed)(images)), np.asarray(exported(images))
        worst = max(worst, float(np.abs(theirs - ours).max() / np.abs(ours).max()))
    return worst
