"""The work directory of a run: one configuration, one writing process at a time."""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Lt
from pydantic import StrictInt

import dml_jax
from dml_jax import config as configs
from dml_jax.config import Config
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.files import read_json, sha256

SHOWN = 5  # differences that an error message lists
# What a run writes into its work directory.
FILES = ("config.json", "metrics.jsonl", "timing.jsonl", "results.json", "report.html")
DIRECTORIES = (
    *("checkpoints", "checkpoints/latest", "checkpoints/best", "embeddings", "figures"),
    *("logs", "profile", "tensorboard", "wandb"),
)
LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "pillow")


Count = Annotated[StrictInt, Ge(1), Lt(2**31)]


@dataclass
class Facts:
    """The entries of config.json that are read again, see `provenance`."""

    config: dict[str, Any]
    data_hash: str
    classes: Count
    images: Count
    shape: tuple[Count, Count]


def read_config(workdir: Path) -> dict[str, Any]:
    """The `config.json` of a work directory.

    Raises:
      CheckpointError: there is none, or it is damaged; names the entry.
    """
    path = workdir / "config.json"
    if not path.exists():
        raise CheckpointError(f"{workdir}: is not a work directory (no config.json)")
    facts: dict[str, Any] = read_json(path, Facts, "restore it from a copy, or give another --workdir", CheckpointError)
    return facts


def check_same_run(workdir: Path, config: Config) -> None:
    """Raises CheckpointError unless the directory is unused or belongs to a run of this configuration.

    Options that change no bit of the model, and a larger number of steps, may differ.
    """
    if not (workdir / "config.json").exists():
        return
    stored = read_config(workdir)["config"]
    with suppress(ConfigError):  # of another version or edited by hand: compared unresolved
        stored = asdict(configs.resolve(stored))
    here = asdict(config)
    old, new = configs.decisive(stored), configs.decisive(here)
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    old, new = configs.flatten(stored), configs.flatten(here)
    for key in ("train.steps", "train.epochs"):
        if not isinstance(old.get(key), int) or new[key] < old[key]:
            keys.append(key)
    if keys:
        shown = ["method.name"] if "method.name" in keys else keys[:SHOWN]  # another method has other options
        differences = ", ".join(f"{key} ({old.get(key)!r} there, {new.get(key)!r} here)" for key in shown)
        more = f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else ""
        raise CheckpointError(
            f"{workdir}: belongs to a run of another configuration: {differences}{more}; give another --workdir"
        )


def check_entries(workdir: Path) -> None:
    """Raises CheckpointError if anything is in the way of what a run writes, so that no work is lost at its end."""
    for names, wanted, kind in ((FILES, Path.is_file, "file"), (DIRECTORIES, Path.is_dir, "directory")):
        for path in (workdir / name for name in names):
            if (path.exists() or path.is_symlink()) and not wanted(path):
                raise CheckpointError(f"{path}: is not a {kind}; remove it, or give another --workdir")


@contextmanager
def locked(workdir: Path, *, active: bool = True) -> Iterator[Path]:
    """Creates the directory, checks that it is writable and locks it against a second run.

    Args:
      workdir: the directory.
      active: False on all processes but the first, which do not touch it.

    Raises:
      CheckpointError: something is in the way, the directory is not writable, or another run uses it.
    """
    if not active:
        yield workdir
        return
    existed = workdir.exists()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        # Nothing is written, and what a link points to is not opened.
        lock = os.fdopen(os.open(workdir / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", 0)
    except FileExistsError:
        raise CheckpointError(f"--workdir={workdir}: is a file, not a directory") from None
    except NotADirectoryError:
        raise CheckpointError(f"--workdir={workdir}: a parent of this path is a file, not a directory") from None
    except OSError as error:
        what = ".lock is a link; remove it" if error.errno == errno.ELOOP else f"is not writable ({error.strerror})"
        raise CheckpointError(f"--workdir={workdir}: {what}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(f"--workdir={workdir}: another run is using it") from None
        try:
            check_entries(workdir)
            yield workdir
        finally:
            _remove_unused(workdir, existed)


def _remove_unused(workdir: Path, existed: bool) -> None:
    """Removes a new directory that has neither a checkpoint nor metrics, because the run failed before."""
    if not workdir.is_dir():  # moved or deleted while it was used
        return
    entries = {entry.name for entry in workdir.iterdir()}
    trained = any(path.is_file() for path in (workdir / "checkpoints").rglob("*"))
    unused = {".lock", "config.json", "checkpoints", "logs", "tensorboard", "wandb"}
    if not existed and not trained and entries <= unused:
        shutil.rmtree(workdir)


def provenance(config: Config, data_hash: str, classes: int, images: int, shape: tuple[int, int]) -> dict[str, Any]:
    """The contents of `config.json`: the resolved configuration, the data, the commit and the library versions.

    Args:
      config: of the run.
      data_hash: see `experiment.data_hash`.
      classes: number of training classes.
      images: number of training images.
      shape: (height, width) of an image; with these numbers the model can be rebuilt without the data.
    """
    return {
        "config": asdict(config),
        "hash": configs.digest(config),
        "data_hash": data_hash,
        "classes": classes,
        "images": images,
        "shape": list(shape),
        "commit": _commit(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of this package and of the libraries that affect its results, by name."""
    return {"dml_jax": dml_jax.__version__, **{name: version(name) for name in LIBRARIES}}


def source_digest() -> str:
    """SHA-256 of the Python files of this package, with their names."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {sha256(path)}".encode())
    return digest.hexdigest()


def _commit() -> str | None:
    """The git commit of this package, followed by "-dirty" if files differ; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    # `git describe --dirty` would lock the index, and on a full disk leave the lock behind.
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        lines = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        return None
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), None)
    dirty = any(not line.startswith("#") for line in lines)
    return f"{commit}-dirty" if commit and dirty else commit
