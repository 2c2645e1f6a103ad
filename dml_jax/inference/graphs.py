"""Embedding by onnxruntime: on CPUs faster than JAX, and without importing it.

The ONNX graph of a model is made once (extra "onnx") and kept in the user's cache below the digest
of the model's identity: by `dml-jax export --to=onnx`, at the end of the first command that would
have used it, or before `dml-jax serve` listens. It is compared with JAX's embeddings when it is
made, and with the row of the probe image before it is used.
"""

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import numpy as np

from dml_jax import identity as identities
from dml_jax import seal
from dml_jax.data.cores import usable_cores
from dml_jax.data.read_ahead import CHUNK, read_each, stream
from dml_jax.errors import ConfigError, DataError, UserError
from dml_jax.files import cache_dir, is_url, reason
from dml_jax.identity import Versions
from dml_jax.inference.embedding_model import EmbeddingModel, locate
from dml_jax.seal import Identity

if TYPE_CHECKING:
    from dml_jax.inference.model import Model

Runtime = Literal["jax", "onnxruntime"]
GRAPH, KIND = "model.onnx", "ONNX graph"
ACCELERATORS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "libtpu")
EXTRA = 'is not installed: pip install -e ".[onnx]"'
PARTS = 4  # of a batch that each core embeds
T = TypeVar("T")


def entry(identity: Identity) -> Path:
    """The directory of the graph of an embedding function."""
    return cache_dir() / "graphs" / identity.sha256[:32]


def keep(identity: Identity, write: Callable[[Path], object]) -> None:
    """Keeps the ONNX graph of an embedding function that `write` writes, completely or not at
    all."""
    with seal.write(entry(identity), KIND, identity=identity) as draft:
        write(draft / GRAPH)


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
    installed, reported = find("onnxruntime"), checkpoint == "reported"
    if runtime not in (None, *get_args(Runtime)):
        raise ConfigError(f"runtime={runtime!r}: must be one of {', '.join(get_args(Runtime))}")
    if runtime == "onnxruntime" and not installed:
        raise ConfigError(f"{option}: onnxruntime {EXTRA}")
    if runtime == "onnxruntime" and not reported:
        raise ConfigError(f"{option}: needs the reported checkpoint, not --checkpoint={checkpoint}")
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu" or not any(map(find, ACCELERATORS))
    use_graph = runtime == "onnxruntime" if runtime else on_cpu and installed and reported
    directory = locate(model) if use_graph and not is_url(model) else None
    identity = _stated(directory, versions) if directory else None
    if directory and identity and (graph_model := _read(directory, identity, trust_code)):
        return graph_model
    from dml_jax.inference.model import Model  # importing JAX takes a second

    loaded = Model(directory or model, checkpoint, trust_code=trust_code, **versions._asdict())
    loaded.lacks_graph = bool(identity and find("jax2onnx"))
    if runtime == "onnxruntime":
        remedy = "make it with dml-jax export --to=onnx, or leave the option out once"
        raise ConfigError(f"{option}: the cache has no ONNX graph of {model}; {remedy}")
    return loaded


def make(model: EmbeddingModel) -> None:
    """Makes the graph that `load` did not find, once, and says so.

    If that fails, the reason is written next to the place of the graph, and it is not tried again.
    """
    if not model.lacks_graph:
        return
    from dml_jax.export import programs

    place, loaded, began = entry(model.identity), cast("Model", model), time.perf_counter()
    failure = place.with_suffix(".error")
    if place.exists() or failure.exists():
        return
    sys.stdout.flush()
    say = partial(print, file=sys.stderr, flush=True)
    say("making the ONNX graph of the model, once, so that it embeds faster from now on", end="")
    try:
        function = programs.function_of(loaded.trained)
        stated = loaded.identity
        keep(stated, lambda file: programs.write_onnx(file, function, loaded.shape, stated))
        say(f": {time.perf_counter() - began:.0f} s, {place}")
    except (DataError, OSError) as problem:
        say(f": {reason(problem)}; delete {failure} to try again")
        with suppress(OSError):
            failure.write_text(reason(problem))


def _stated(directory: Path, versions: Versions) -> Identity | None:
    """The identity that a model's directory states; None if there is none, or a damaged one."""
    with suppress(UserError):  # JAX finds it again
        stated = seal.read_manifest(directory).identity
        if stated is None or versions == Versions():
            return stated
        facts = json.loads(json.dumps(versions._asdict()))
        return replace(stated, description=stated.description | facts, row=[])
    return None


def _read(directory: Path, identity: Identity, trust_code: bool) -> "GraphModel | None":
    """The model of a directory by its graph; None if there is none. A damaged one is removed."""
    if not (place := entry(identity)).is_dir():
        return None
    try:
        stated = seal.read(place, KIND, expect=identity).identity
        assert stated is not None  # as `expect` is not
        return GraphModel(directory, stated, place, trust_code=trust_code)
    except UserError:
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

    def __init__(self, directory: Path, identity: Identity, graph: Path, *, trust_code: bool):
        self.directory, self.finished, self.data = (
            directory,
            True,
            identities.data_options(identity),
        )
        self.identity = self._unproved = identity
        self._graph, self._trust_code, facts = graph, trust_code, identity.description
        self.shape, self.step = tuple(facts["size"]), facts["step"]
        self.versions = Versions(facts["flip"], tuple(facts["scales"]))
        self.method_distance = facts["distance"] != "cosine"
        self._dimensions = len(identity.row)
        content = (graph / GRAPH).read_bytes()
        self._session = cache(partial(_session, content))  # by number of threads

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._jax, name)

    @cached_property
    def _jax(self) -> "Model":
        from dml_jax.inference.model import Model

        return Model(self.directory, trust_code=self._trust_code, **self.versions._asdict())

    def _run(self, threads: int, pixels: np.ndarray) -> np.ndarray:
        """Embeds a batch; before the first one, computes a row of the probe."""
        session = self._session(threads)

        def embed(images: np.ndarray) -> np.ndarray:
            rows: np.ndarray = session.run(None, {"images": images})[0]
            return rows

        try:
            self._check_probe(embed, f"the graph {self._graph} is deleted, so try again")
        except UserError:
            shutil.rmtree(self._graph, ignore_errors=True)
            raise
        return embed(pixels)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""
        return self._run(usable_cores(), pixels)

    def _stream(self, read: Any, groups: Any, **options: Any) -> Iterator[np.ndarray]:
        """Each core reads some images and embeds them by itself: no core waits for another one."""
        blank = np.zeros(self._dimensions, np.float32)

        def embedded(items: Sequence[T]) -> list[np.ndarray | DataError]:
            images = read_each(read, items)
            good = [image for image in images if not isinstance(image, DataError)]
            rows = iter(self._run(1, np.stack(good)) if good else ())
            return [image if isinstance(image, DataError) else next(rows) for image in images]

        size = PARTS * CHUNK * usable_cores()
        return stream(embedded, lambda rows, count: np.stack(rows), groups, blank, size, **options)
