"""The identity of an embedding function: what it is, from the file of an image to its row.

`Identity` describes every step in readable keys and has the SHA-256 of all variables. It also has
the rows of the probe, the small images in `data/probe`. Whoever opens something that a model has
written compares the identities (`Identity.check`), and a model computes one row of the probe before
its first answer (`Identity.check_rows`): a file that was edited may state anything of itself, and
another library or device may compute something else.

`TOLERANCES` are the largest distances of rows, relative to their length. In float32, the tolerance
is far above the rounding of JAX and onnxruntime on CPUs (1.3e-6 of the largest value for
EfficientNet-Lite0) and far below the effect of moving a crop by one pixel (0.05 to 0.11). Rounding
to bfloat16 moves rows by 0.03 to 0.07, and two devices may differ by as much. The tolerance of
TensorFloat-32 is an estimate that was not measured.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from dml_jax import manifest
from dml_jax.config import Data
from dml_jax.config.fields import Effect, Mark, declared, flatten
from dml_jax.data import arrays, decode, transforms
from dml_jax.data.arrays import Shape
from dml_jax.errors import CheckpointError, DataError, UserError
from dml_jax.files import reading, write_json

NAME, KEY = "identity.json", "dml_jax.identity"  # of files, and in the metadata of others
PROBE = Path(__file__).parent / "data" / "probe"
# The first, for which Pillow is not needed, is computed again before a first answer.
IMAGES = ("colour.jpg", "transparent.png", "rotated.jpg")
TOLERANCES = {"float32": 1e-3, "tensorfloat32": 1e-2, "bfloat16": 0.15}
REMEDY = (
    "restore it from a copy, or delete manifest.json to have the same command evaluate and write "
    "it again"
)  # of a run
SHOWN = 4  # differences in a message


class Versions(NamedTuple):
    """The versions of an image whose embeddings are averaged."""

    flip: bool = False
    scales: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Identity:
    """What an embedding function is.

    Attributes:
      description: readable facts by key, see `described`.
      variables: SHA-256 of all parameters and of the model state.
      probe: rows of `IMAGES`, float32 [3, D] in base64.
    """

    description: dict[str, Any]
    variables: str
    probe: str = field(default="", compare=False)

    @property
    def sha256(self) -> str:
        """Identifies the function; without the rows, which other devices round differently."""
        text = json.dumps([self.description, self.variables], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def rows(self) -> np.ndarray:
        """The rows of the probe, float32 [3, D]."""
        numbers = np.frombuffer(base64.b64decode(self.probe), "<f4")
        return numbers.reshape(len(IMAGES), -1)

    @property
    def data(self) -> Data:
        """The options by which images are read."""
        facts = self.description
        return Data(
            name="folder",
            crop="centre" if facts["crop"] else "none",
            image_size=facts["crop"],
            resize=facts["resize"],
            interpolation=facts["interpolation"],
            exif_rotation=facts["exif_rotation"],
        )

    def with_rows(self, rows: np.ndarray) -> "Identity":
        """The identity with the rows of the probe, float32 [3, D]."""
        return replace(self, probe=base64.b64encode(np.asarray(rows, "<f4").tobytes()).decode())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def differences(self, other: "Identity") -> str:
        """`key: value instead of the other's` for what differs; empty if nothing does."""
        ours, theirs = self.description, other.description
        found = [
            f"{key}: {ours.get(key)!r} instead of {theirs.get(key)!r}"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
        ]
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        found = found[:SHOWN] + more
        return ", ".join(found or ["other variables"] * (self.variables != other.variables))

    def check(self, model: "Identity", what: str, remedy: str, error: type[UserError]) -> None:
        """Raises `error` unless `model` is the function that this identity, of `what`, states."""
        if found := self.differences(model):
            raise error(f"{what}: is of another embedding function ({found}); {remedy}")
        if model.probe:
            self.check_rows(model.rows, what, remedy, error)

    def check_rows(
        self, rows: np.ndarray, what: str, remedy: str, error: type[UserError] = DataError
    ) -> None:
        """Raises `error` unless rows of the probe, float32 [n, D], are the first n of `rows`."""
        if not (distance := self.distance(rows)) <= self.tolerance:
            raise error(
                f"{what}: the rows of the probe images differ by {distance:.2g}, more than the "
                f"{self.tolerance:g} of rounding, though the descriptions agree: its files were "
                f"changed, or a library or device computes something else; {remedy}"
            )

    def distance(self, rows: np.ndarray) -> float:
        """Largest distance of rows of the probe, float32 [n, D], from the first n, relative to the
        length of these; infinite if D differs."""
        stored = self.rows[: len(rows)]
        if stored.shape != rows.shape:
            return float("inf")
        lengths = np.maximum(np.linalg.norm(stored, axis=1), 1e-12)
        return float(np.max(np.linalg.norm(rows - stored, axis=1) / lengths))

    @property
    def tolerance(self) -> float:
        """Largest distance of rows of unit length, see `TOLERANCES`."""
        kinds = [self.description.get(key) for key in ("precision", "network.dtype")]
        return max(TOLERANCES.get(str(kind), TOLERANCES["float32"]) for kind in kinds)


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
    unused = (Mark.PATH, Effect.NONE)
    return {
        f"{section}.{key}": value
        for key, value in flatten(values).items()
        if not any(mark in unused for mark in declared(kind, key))
    }


@cache
def probe(data: Data, shape: Shape, names: tuple[str, ...] = IMAGES) -> np.ndarray:
    """Images of the probe as the network sees them, uint8 [n, H, W, 3].

    A model without cropping gets them resized, as they are not of its size; a model of other arrays
    gets `arrays.random`.
    """
    if not arrays.is_image(shape):
        return arrays.random(shape, len(IMAGES))[: len(names)]
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


def read(directory: Path, remedy: str, error: type[UserError] = DataError) -> Identity:
    """The identity that a directory of a model states; raises `error` if there is none."""
    with reading(directory / NAME, remedy, error):
        return of_json(json.loads((directory / NAME).read_text(encoding="utf-8")))


def of_run(workdir: Path, remedy: str = REMEDY) -> Identity | None:
    """The identity of the reported model of a run; None if it has not finished."""
    if not (workdir / NAME).exists():
        return None
    manifest.part(workdir, NAME, CheckpointError, remedy)
    return read(workdir, remedy, CheckpointError)


def check_results(workdir: Path, results: Mapping[str, Any], remedy: str) -> None:
    """Raises CheckpointError unless the `results.json` of a run is of its model."""
    found = of_run(workdir, remedy)
    if found and results.get("identity") != found.sha256:
        file = workdir / "results.json"
        raise CheckpointError(f"{file}: are not the results of this run's model; {remedy}")


def write(directory: Path, identity: Identity) -> None:
    """Writes the identity of a model into its directory."""
    write_json(directory / NAME, identity.as_json())


def of_json(content: Mapping[str, Any]) -> Identity:
    """The identity in a file of embeddings, an index or a plan; ValueError if it is damaged."""
    found = TypeAdapter(Identity).validate_python(content)
    found.rows  # noqa: B018 not base64, or not of equal length
    return found
