"""The work directory of a run: one configuration, one writing process at a time."""

import fcntl
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dml_jax
from dml_jax import config as configs
from dml_jax.config import Config
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.files import sha256

SHOWN = 5  # differences that an error message lists
# The entries of config.json that are read again, with their types.
ENTRIES = {"config": dict, "data_hash": str, "classes": int, "images": int, "shape": list}
LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "pillow")


def read_config(workdir: Path) -> dict[str, Any]:
    """The `config.json` of a work directory.

    Raises:
      CheckpointError: there is none, or it cannot be read.
    """
    path = workdir / "config.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{workdir}: is not a work directory (no config.json)") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    for key, kind in ENTRIES.items():
        if not isinstance(facts, dict) or not isinstance(facts.get(key), kind):
            raise CheckpointError(f"{path}: was not written by a run ({key} is missing or has the wrong type)")
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


@contextmanager
def locked(workdir: Path, *, active: bool = True) -> Iterator[Path]:
    """Creates the directory, checks that it is writable and locks it against a second run.

    Args:
      workdir: the directory.
      active: False on all processes but the first, which do not touch it.

    Raises:
      CheckpointError: a file is in the way, the directory is not writable, or another run uses it.
    """
    if not active:
        yield workdir
        return
    existed = workdir.exists()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = open(workdir / ".lock", "w")  # noqa: SIM115
    except FileExistsError:
        raise CheckpointError(f"--workdir={workdir}: is a file, not a directory") from None
    except NotADirectoryError:
        raise CheckpointError(f"--workdir={workdir}: a parent of this path is a file, not a directory") from None
    except OSError as error:
        raise CheckpointError(f"--workdir={workdir}: is not writable ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(f"--workdir={workdir}: another run is using it") from None
        try:
            yield workdir
        finally:
            _remove_unused(workdir, existed)


def _remove_unused(workdir: Path, existed: bool) -> None:
    """Removes a new directory that has neither a checkpoint nor metrics, because the run failed before."""
    entries = {entry.name for entry in workdir.iterdir()}
    trained = any(path.is_file() for path in (workdir / "checkpoints").rglob("*"))
    if not existed and not trained and entries <= {".lock", "config.json", "checkpoints"}:
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
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None
