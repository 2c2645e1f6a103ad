"""For all tests: eight virtual CPU devices, no implicit rank promotion, one compilation cache."""

import atexit
import ctypes
import gc
import importlib
import os
import platform
import resource
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.hub import Hub

from tests import xla_flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Matrices are small, and threads of NumPy and scikit-learn that wait for each other take the cores from other workers.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Most of the time is spent compiling small programs. The older emitters of XLA before 2026 compile a third faster,
# programs in one part, which are not compiled in parallel, a fifth, and fewer passes of LLVM a twentieth.
os.environ["XLA_FLAGS"] = xla_flags.with_known(
    xla_flags.UNOPTIMIZED,
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_llvm_disable_expensive_passes=true",
)
# Shared with the processes that tests start, and with later runs of the tests.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # no lines of Python in programs: lowered faster

import jax
import pytest

# Read by the client of the Hugging Face hub when it is imported. The socket only reserves the
# address, which refuses connections unless a test uses the fixture `hub`.
_reserved = socket.socket()
atexit.register(_reserved.close)
_reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
_reserved.bind(("127.0.0.1", 0))
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{_reserved.getsockname()[1]}"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="dml_jax-hub-")
os.environ |= {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}  # seconds
os.environ.pop("HF_TOKEN", None)
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

# Extras in DML_JAX_EXTRAS are installed: their tests must not be skipped. By extra: modules of other names.
_MODULES = {
    "onnx": ("jax2onnx", "onnxruntime"), "heic": ("pillow_heif",),
    "tensorboard": ("tensorboardX",), "gcs": ("gcsfs", "gcp_storage_emulator"),
    "torch": ("torch", "timm", "transformers", "equimo", "equinox"), "docs": ("mkdocs", "pandas"),
}  # fmt: skip
_extras = os.environ.get("DML_JAX_EXTRAS", "")
_installed = [module for extra in _extras.split(",") for module in _MODULES.get(extra, (extra,))]
_skip_unless = pytest.importorskip
pytest.importorskip = lambda name, *rest, **options: (  # type: ignore[assignment]
    importlib.import_module(name) if name.partition(".")[0] in _installed else _skip_unless(name, *rest, **options)
)

_LIBC = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
gc.set_threshold(100_000, 50, 100)  # with many programs in memory, collecting garbage takes a while
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write the sentences of tests/refusals as they are printed now"
    parser.addoption("--update", action="store_true", help=text)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes run first: they take longest, and parallel workers should finish together."""
    items.sort(key=lambda item: item.path.name not in ("test_process_group.py", "test_main.py"))


def _resident() -> int:
    """Bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


_limit = 1.2e9


@pytest.fixture(autouse=True)
def _limited_memory() -> Iterator[None]:
    """Discards compiled programs before they take several gigabytes of a worker."""
    global _limit
    yield
    if _LIBC and _resident() > _limit:
        jax.clear_caches()
        gc.collect()
        _LIBC.malloc_trim(0)  # otherwise the allocator keeps what was freed
        # What is left is no program: discarding takes half a second, and compiling again longer.
        _limit = max(_limit, _resident() + 0.5e9)


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 arithmetic inside the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """A context in which no file can get more than so many bytes."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        limits, handler = (resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)

    return limited


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Hub]":
    """A Hugging Face hub without repositories; its client has nothing in its cache and does not pause."""
    from tests import hub

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with hub.running() as state:
        yield state
