"""The trained embedding function as one StableHLO file, which runs without this package.

It needs only jax and flatbuffers:

    import jax.export
    embed = jax.export.deserialize(open("model.stablehlo", "rb").read()).call
    embeddings = embed(images)        # uint8 [B, H, W, 3] -> [B, D], any B
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from dml_jax.files import atomic_write

Embed = Callable[[jax.Array], jax.Array]

PLATFORMS = ("cpu", "cuda", "tpu")


def write(path: Path, embed: Embed, image_shape: tuple[int, int]) -> float:
    """Exports an embedding function to a file, completely or not at all.

    Args:
      embed: uint8 [B, H, W, 3] -> float [B, D]; arrays it closes over (parameters, statistics) are stored in the file.
      image_shape: (H, W) in pixels, fixed in the file; B remains symbolic.

    Returns:
      The deviation of the written function from `embed`, see `deviation_of`.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *image_shape, 3), jnp.uint8)
    data = jax.export.export(jax.jit(embed), platforms=PLATFORMS)(images).serialize()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_bytes(data)
    return deviation_of(jax.jit(read(path)), embed, image_shape)


def read(path: Path) -> Embed:
    """Loads the function from a file written by `write`."""
    return jax.export.deserialize(bytearray(path.read_bytes())).call


def deviation_of(
    exported: Callable[[Any], Any], embed: Embed, image_shape: tuple[int, int], batches: Sequence[int] = (1, 3)
) -> float:
    """Largest difference of an exported function from the original on random pixels, relative to the largest value."""
    rng, worst = np.random.default_rng(0), 0.0
    for size in batches:
        images = rng.integers(0, 256, (size, *image_shape, 3), dtype=np.uint8)
        ours, theirs = np.asarray(jax.jit(embed)(images)), np.asarray(exported(images))
        worst = np.maximum(worst, np.abs(theirs - ours).max() / np.abs(ours).max())  # NaN stays NaN
    return float(worst)
