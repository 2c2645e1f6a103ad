"""What an embedding function is, step by step, from the file of an image to its row.

The description names every step in readable keys; the weights have a digest. What a description
cannot prove is measured on the images in `data/probe`: how they are decoded, rotated, resized and
cropped, by the SHA-256 of the pixels that enter the network, and what the network computes, by the
row of the first one. Pixels are equal or not. Rows differ by rounding: `TOLERANCES` are far above
the rounding of JAX and onnxruntime on CPUs in float32 (1.3e-6 of the largest value), and above the
0.03 to 0.07 of bfloat16; the tolerance of TensorFloat-32 was not measured.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_jax import seal
from dml_jax.config import Data
from dml_jax.config.fields import Effect, Mark, declared, flatten
from dml_jax.data import arrays, decode, transforms
from dml_jax.data.arrays import Shape
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.seal import Identity

KEY = "dml_jax.identity"  # in the metadata of ONNX graphs and Parquet files
PROBE = Path(__file__).parent / "data" / "probe"
# The network computes the row of the first.
IMAGES = ("colour.jpg", "transparent.png", "rotated.jpg", "large.jpg")
DECODERS = ("pillow", "simplejpeg")
TOLERANCES = {"float32": 1e-3, "tensorfloat32": 1e-2, "bfloat16": 0.15}
OTHER_LIBRARIES = (
    "install the versions that it was made with, or make it again with --mode=evaluate (a run) or "
    "dml-jax convert (weights)"
)


class Versions(NamedTuple):
    """The versions of an image whose embeddings are averaged."""

    flip: bool = False
    scales: tuple[float, ...] = (1.0,)

    @staticmethod
    def of(flip: bool, scales: Any) -> "Versions":
        """Those that a caller asks for; ConfigError for scales that are none."""
        with suppress(TypeError, ValueError):
            numbers = tuple(float(1.0 * scale) for scale in scales)  # no text
            if numbers and all(0 < scale < 10 for scale in numbers):
                return Versions(flip, numbers)
        rule = "give a tuple of one or more numbers above 0 and below 10"
        raise ConfigError(f"scales={scales!r}: {rule}, e.g. (1.0, 1.25)")


def described(
    data: Data,
    shape: Shape,
    backbone: Any,
    method: Any,
    versions: Versions,
    **further: Any,
) -> dict[str, Any]:
    """The description of an embedding function, for a network and method from their options.

    `further` has the precision, distance and step.
    """
    network = _options("network", backbone, {"pretrained", "remat", "pixels"})
    options = _options("method", method, set()) if method is not None else {}
    facts = {
        "exif_rotation": data.exif_rotation,
        "resize": data.resize,
        "crop": data.image_size,
        "interpolation": data.interpolation,
        "size": shape,
    }
    if pixels := getattr(backbone, "pixels", None):
        facts |= {"order": pixels.order, "top": pixels.top}
        facts |= {"mean": pixels.mean, "deviation": pixels.std}
    facts |= network | options | versions._asdict() | further
    found: dict[str, Any] = json.loads(json.dumps(facts))  # lists instead of tuples, as in files
    return found


def _options(section: str, options: Any, left_out: set[str]) -> dict[str, Any]:
    """The options of a section that may change embeddings, without paths."""
    values = {key: value for key, value in asdict(options).items() if key not in left_out}
    kind: Any = type(options)
    unused = (Mark.PATH, Mark.TRAINING, Effect.NONE)
    return {
        f"{section}.{key}": value
        for key, value in flatten(values).items()
        if not any(mark in unused for mark in declared(kind, key))
    }


def data_of(identity: Identity) -> Data:
    """The options by which an embedding function reads images."""
    facts = identity.description
    return Data(
        name="folder",
        crop="centre" if facts["crop"] else "none",
        image_size=facts["crop"],
        resize=facts["resize"],
        interpolation=facts["interpolation"],
        exif_rotation=facts["exif_rotation"],
    )


def check_results(workdir: Path, results: Mapping[str, Any], remedy: str) -> None:
    """Raises CheckpointError unless the `results.json` of a run is of its model."""
    stated = seal.stated(workdir).identity if seal.sealed(workdir) else None
    if stated and results.get("identity") != stated.sha256:
        file = workdir / "results.json"
        raise CheckpointError(f"{file}: are not the results of this run's model; {remedy}")


@cache
def probe(data: Data, shape: Shape, names: tuple[str, ...] = IMAGES) -> np.ndarray:
    """Images of the probe as the network sees them, uint8 [n, H, W, 3].

    A model without cropping gets them resized, as they are not of its size; a model of other arrays
    gets `arrays.random`.
    """
    if not arrays.is_image(shape):
        return arrays.random(shape, len(names))
    images = []
    for name in names:
        content = (PROBE / name).read_bytes()
        if data.crop == "none":
            pixels = decode.rgb(content, upright=data.exif_rotation)
            height, width = shape
            images.append(transforms.resize(pixels, int(height), int(width)))
        else:
            images.append(transforms.of_file(data, shape, content))
    return np.stack(images)


def with_probe(
    description: dict[str, Any], variables: str, data: Data, shape: Shape, row: np.ndarray | None
) -> Identity:
    """The identity of a function that reads images by `data` and computes `row` [D] of the first
    image of the probe, if it is known."""
    pixels = hashlib.sha256(probe(data, shape).tobytes()).hexdigest()
    numbers = [] if row is None else np.asarray(row, np.float32).tolist()
    decoders = {name: version(name) for name in DECODERS}
    return Identity(description, variables, pixels, numbers, decoders)


def check_pixels(stated: Identity, data: Data, shape: Shape, what: str) -> None:
    """Raises CheckpointError unless images become the pixels that the identity states."""
    here = with_probe(stated.description, stated.variables, data, shape, None)
    if difference := stated.differences(here):
        raise CheckpointError(f"{what}: {difference}; {OTHER_LIBRARIES}")


def distance(stated: Identity, row: np.ndarray) -> float:
    """Distance of a row [D] from the stated one, relative to its length; infinite if D differs."""
    stored = np.array(stated.row, np.float32)
    if stored.shape != row.shape:
        return float("inf")
    return float(np.linalg.norm(row - stored) / max(float(np.linalg.norm(stored)), 1e-12))


def check_row(stated: Identity, row: np.ndarray, what: str, remedy: str) -> None:
    """Raises CheckpointError unless `row` [D] is that of the first image of the probe."""
    kinds = [stated.description.get(key) for key in ("precision", "network.dtype")]
    tolerance = max(TOLERANCES.get(str(kind), TOLERANCES["float32"]) for kind in kinds)
    if not (difference := distance(stated, row)) <= tolerance:
        raise CheckpointError(
            f"{what}: the embedding of the probe image differs by {difference:.2g}, more than the "
            f"{tolerance:g} of rounding, though the weights are the same: a library or this device "
            f"computes something else; {remedy}"
        )
