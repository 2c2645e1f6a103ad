"""The identity of an embedding function: every step from image file to embedding.

A description names every step with readable keys; weights have a digest. The images in `data/probe`
test what a description cannot prove. The SHA-256 of the pixels that enter the network shows how
images are decoded, rotated, resized and cropped; the embedding (row) of the first image shows what
the network computes. Pixels must be equal; rows may differ by rounding: `TOLERANCES` are far above
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
# The row is the embedding of the first.
IMAGES = ("colour.jpg", "transparent.png", "rotated.jpg", "large.jpg")
DECODERS = ("pillow", "simplejpeg")
TOLERANCES = {"float32": 1e-3, "tensorfloat32": 1e-2, "bfloat16": 0.15}
OTHER_LIBRARIES = (
    "install the versions that it was made with, or create it again with --mode=evaluate (runs) or "
    "dml-jax convert (weights)"
)


class Versions(NamedTuple):
    """The versions of an image whose embeddings are averaged."""

    flip: bool = False
    scales: tuple[float, ...] = (1.0,)

    @staticmethod
    def of(flip: bool, scales: Any) -> "Versions":
        """Builds versions from a caller's arguments; ConfigError for invalid scales."""
        with suppress(TypeError, ValueError):
            numbers = tuple(float(1.0 * scale) for scale in scales)  # no text
            if numbers and all(0 < scale < 10 for scale in numbers):
                return Versions(flip, numbers)
        rule = "give a tuple of one or more numbers above 0 and below 10"
        raise ConfigError(f"scales={scales!r}: {rule}, e.g. (1.0, 1.25)")


def describe(
    data: Data,
    shape: Shape,
    backbone: Any,
    method: Any,
    versions: Versions,
    **extra: Any,
) -> dict[str, Any]:
    """Describes an embedding function by the options of its data, network and method.

    `extra` contains precision, distance and step.
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
    facts |= network | options | versions._asdict() | extra
    description: dict[str, Any] = json.loads(
        json.dumps(facts)
    )  # lists instead of tuples, as in files
    return description


def _options(section: str, options: Any, left_out: set[str]) -> dict[str, Any]:
    """The options of a section that may affect embeddings, without paths."""
    values = {key: value for key, value in asdict(options).items() if key not in left_out}
    kind: Any = type(options)
    unused = (Mark.PATH, Mark.TRAINING, Effect.NONE)
    return {
        f"{section}.{key}": value
        for key, value in flatten(values).items()
        if not any(mark in unused for mark in declared(kind, key))
    }


def data_options(identity: Identity) -> Data:
    """The data options with which an embedding function reads images."""
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
    """Raises CheckpointError unless the `results.json` of a run belongs to its model."""
    recorded = seal.read_manifest(workdir).identity if seal.sealed(workdir) else None
    if recorded and results.get("identity") != recorded.sha256:
        file = workdir / "results.json"
        raise CheckpointError(f"{file}: belongs to a different model than this run's; {remedy}")


@cache
def probe(data: Data, shape: Shape, names: tuple[str, ...] = IMAGES) -> np.ndarray:
    """The probe images as the network gets them, uint8 [n, H, W, 3].

    They are resized for a model that does not crop; a model of other arrays gets `arrays.random`.
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
            images.append(transforms.fit_file(data, shape, content))
    return np.stack(images)


def with_probe(
    description: dict[str, Any], variables: str, data: Data, shape: Shape, row: np.ndarray | None
) -> Identity:
    """The identity of a function that reads images with `data` and embeds the first probe image as
    `row` [D], if known."""
    pixels = hashlib.sha256(probe(data, shape).tobytes()).hexdigest()
    numbers = [] if row is None else np.asarray(row, np.float32).tolist()
    decoders = {name: version(name) for name in DECODERS}
    return Identity(description, variables, pixels, numbers, decoders)


def check_pixels(recorded: Identity, data: Data, shape: Shape, what: str) -> None:
    """Raises CheckpointError unless probe images have the recorded pixels."""
    current = with_probe(recorded.description, recorded.variables, data, shape, None)
    if difference := recorded.differences(current):
        raise CheckpointError(f"{what}: {difference}; {OTHER_LIBRARIES}")


def distance(recorded: Identity, row: np.ndarray) -> float:
    """Relative distance of a row [D] from the recorded one; infinite if D differs."""
    stored = np.array(recorded.row, np.float32)
    if stored.shape != row.shape:
        return float("inf")
    return float(np.linalg.norm(row - stored) / max(float(np.linalg.norm(stored)), 1e-12))


def check_row(recorded: Identity, row: np.ndarray, what: str, remedy: str) -> None:
    """Raises CheckpointError unless `row` [D] matches the recorded embedding of the probe."""
    kinds = [recorded.description.get(key) for key in ("precision", "network.dtype")]
    tolerance = max(TOLERANCES.get(str(kind), TOLERANCES["float32"]) for kind in kinds)
    if not (difference := distance(recorded, row)) <= tolerance:
        raise CheckpointError(
            f"{what}: the embedding of the probe image differs by {difference:.2g}, more than the "
            f"{tolerance:g} allowed for rounding, with the same weights: a library or this device "
            f"computes differently; {remedy}"
        )
