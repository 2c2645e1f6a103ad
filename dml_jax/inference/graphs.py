"""Embedding by onnxruntime: on CPUs faster than JAX, and without importing it.

The ONNX graph of a model is made once, by `dml-jax export --to=onnx` or `--runtime=onnxruntime`
(extra "onnx"), and kept in the user's cache below the digest of the model's files. It is compared
with JAX's embeddings when it is made.
"""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from pydantic import PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass

from dml_jax._version import __version__
from dml_jax.backbones.weights import converted
from dml_jax.config.sections import Data
from dml_jax.data.pipeline import usable_cores
from dml_jax.data.read_ahead import CHUNK, read_each, stream
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import atomic_directory, cache_dir, is_url, sha256, write_json
from dml_jax.inference.embedding_model import EmbeddingModel, is_run, locate

if TYPE_CHECKING:
    from dml_jax.inference.model import Model

Runtime = Literal["jax", "onnxruntime"]
Versions = tuple[bool, tuple[float, ...]]  # flip and scales
GRAPH, RECORD = "model.onnx", "record.json"
ACCELERATORS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "libtpu")
EXTRA = 'is not installed: pip install -e ".[onnx]"'
PARTS = 4  # of a batch that each core embeds
T = TypeVar("T")


@dataclass
class GraphRecord:
    """The content of `RECORD`: what an `EmbeddingModel` must know besides the graph."""

    graph_sha256: str
    config_hash: str
    fingerprint: str
    step: int
    shape: tuple[PositiveInt, PositiveInt]
    dimensions: PositiveInt
    method_distance: bool
    deviation: float  # from JAX's embeddings, relative to their largest value
    data: Data


def entry(directory: Path, versions: Versions) -> Path | None:
    """The directory of a model's graph; None for a run that is not finished.

    Its name is a digest of the file that records the SHA-256 of all others, and of the sizes and
    times of the variables.
    """
    record = directory / ("manifest.json" if is_run(directory) else converted.METADATA)
    if not record.is_file():
        return None
    digest = hashlib.sha256(f"{__version__} {versions}".encode() + record.read_bytes())
    for file in sorted([*directory.glob("model/*"), *directory.glob("*.safetensors")]):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}".encode())
    return cache_dir() / "graphs" / digest.hexdigest()[:32]


def keep(model: "Model", graph: Path) -> None:
    """Keeps the ONNX graph of a reported model, unless there is one or its embeddings deviate from
    the model's by `TOLERANCE`."""
    from dml_jax.export import programs

    target = entry(model.directory, model.added)
    if target is None or target.exists():
        return
    deviation = programs.deviation_of(graph.read_bytes(), model.embed_pixels, model.shape)
    if not deviation < programs.TOLERANCE:  # the model computes in bfloat16, the graph in float32
        return
    with atomic_directory(target) as draft:
        shutil.copy(graph, draft / GRAPH)
        dimensions = model.embed_pixels(np.zeros((1, *model.shape, 3), np.uint8)).shape[1]
        names = ("config_hash", "fingerprint", "shape", "method_distance", "data")
        same: dict[str, Any] = {name: getattr(model, name) for name in names}
        same |= {"dimensions": dimensions, "deviation": deviation, "step": int(model.step)}
        record = GraphRecord(graph_sha256=sha256(draft / GRAPH), **same)
        write_json(draft / RECORD, asdict(record))


def load(
    model: str | Path,
    checkpoint: str,
    runtime: Runtime | None,
    *,
    trust_code: bool,
    versions: Versions,
) -> EmbeddingModel:
    """The model on a runtime; None for onnxruntime if it has the graph and JAX has no accelerator,
    otherwise JAX."""
    find, option = importlib.util.find_spec, "--runtime=onnxruntime"
    asked, installed, reported = runtime is not None, find("onnxruntime"), checkpoint == "reported"
    if runtime == "onnxruntime" and not installed:
        raise ConfigError(f"{option}: onnxruntime {EXTRA}")
    if runtime == "onnxruntime" and not reported:
        raise ConfigError(f"{option}: needs the reported checkpoint, not --checkpoint={checkpoint}")
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu" or not any(map(find, ACCELERATORS))
    wanted = runtime == "onnxruntime" if asked else on_cpu and installed and reported
    directory = locate(model) if wanted and not is_url(model) else None
    if directory and (kept := _read(directory, versions)):
        return kept
    from dml_jax.inference.model import Model  # importing JAX takes a second

    flip, scales = versions
    place = directory or model
    loaded = Model(place, checkpoint, trust_code=trust_code, flip=flip, scales=scales)
    if runtime != "onnxruntime":
        return loaded
    if find("jax2onnx") is None:
        raise ConfigError(f"{option}: jax2onnx {EXTRA}")
    from dml_jax.export import programs

    with tempfile.TemporaryDirectory() as folder:
        programs.write_onnx(Path(folder, GRAPH), programs.function_of(loaded.trained), loaded.shape)
        keep(loaded, Path(folder, GRAPH))
    if not (kept := _read(loaded.directory, versions)):
        raise ConfigError(f"{option}: {model} is not a finished run; give --runtime=jax")
    return kept


def _read(directory: Path, versions: Versions) -> "GraphModel | None":
    """The model of a directory by its graph; None if there is none. A damaged one is removed."""
    place = entry(directory, versions)
    if place is None or not place.is_dir():
        return None
    with suppress(ValueError, OSError):
        record = TypeAdapter(GraphRecord).validate_json((place / RECORD).read_bytes())
        graph = (place / GRAPH).read_bytes()
        if hashlib.sha256(graph).hexdigest() == record.graph_sha256:
            return GraphModel(directory, versions, record, graph)
    shutil.rmtree(place, ignore_errors=True)
    return None


def _session(graph: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class GraphModel(EmbeddingModel):
    """A model whose embeddings onnxruntime computes; for anything else, it is JAX's `Model`."""

    runtime = "onnxruntime"

    def __init__(self, directory: Path, versions: Versions, record: GraphRecord, graph: bytes):
        self.directory, self.added, self.finished = directory, versions, True
        self.data, self.shape, self.step = record.data, record.shape, record.step
        self.config_hash, self.fingerprint = record.config_hash, record.fingerprint
        self.method_distance, self._dimensions = record.method_distance, record.dimensions
        self._session = cache(partial(_session, graph))  # by number of threads

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._jax, name)

    @cached_property
    def _jax(self) -> "Model":
        from dml_jax.inference.model import Model

        return Model(self.directory, flip=self.added[0], scales=self.added[1])

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""
        return self._session(usable_cores()).run(None, {"images": pixels})[0]

    def _stream(self, read: Any, groups: Any, **options: Any) -> Iterator[np.ndarray]:
        """Each core reads some images and embeds them by itself: no core waits for another one."""
        session, blank = self._session(1), np.zeros(self._dimensions, np.float32)

        def embedded(items: Sequence[T]) -> list[np.ndarray | DataError]:
            found = read_each(read, items)
            good = [image for image in found if not isinstance(image, DataError)]
            rows = iter(session.run(None, {"images": np.stack(good)})[0] if good else ())
            return [image if isinstance(image, DataError) else next(rows) for image in found]

        size = PARTS * CHUNK * usable_cores()
        return stream(embedded, lambda rows, count: np.stack(rows), groups, blank, size, **options)
