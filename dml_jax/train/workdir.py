"""The work directory of a run: one configuration, one process at a time."""

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dml_jax import config as configs
from dml_jax.config import Config
from dml_jax.errors import CheckpointError

TOLD = 5  # differences that one sentence names
# What is read again of config.json.
KINDS = {"config": dict, "data_hash": str, "classes": int, "images": int, "shape": list}
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
        raise CheckpointError(f"{workdir}: holds no run (no config.json)") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    for key, kind in KINDS.items():
        if not isinstance(facts, dict) or not isinstance(facts.get(key), kind):
            raise CheckpointError(f"{path}: is not what a run has written ({key} is missing or of another kind)")
    return facts


def compare(workdir: Path, config: Config) -> None:
    """Raises CheckpointError unless the directory is free or holds a run of this configuration.

    Differences that change no bit of the model, and more steps, are none.
    """
    if not (workdir / "config.json").exists():
        return
    stored = read_config(workdir)["config"]
    old, new = configs.decisive(stored), configs.decisive(asdict(config))
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    there, here = configs.flatten(stored), configs.flatten(asdict(config))
    for key in ("train.steps", "train.epochs"):
        if not isinstance(there.get(key), int) or here[key] < there[key]:
            keys.append(key)
    if keys:
        told = ["method.name"] if "method.name" in keys else keys[:TOLD]  # another method has other options
        shown = ", ".join(f"{key} ({there.get(key)!r} there, {here.get(key)!r} here)" for key in told)
        shown += f" and {len(keys) - len(told)} more" if len(keys) > len(told) else ""
        raise CheckpointError(f"{workdir}: holds a run of another configuration: {shown}; give another --workdir")


@contextmanager
def opened(workdir: Path, *, active: bool = True) -> Iterator[Path]:
    """Makes the directory, checks that it can be written to and locks it against a second run.

    Args:
      workdir: the directory.
      active: False on all processes but the first, which leave it alone.

    Raises:
      CheckpointError: a file is in the way, it cannot be written to, or another run is in it.
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
        raise CheckpointError(f"--workdir={workdir}: lies below a file, not a directory") from None
    except OSError as error:
        raise CheckpointError(f"--workdir={workdir}: cannot be written to ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(f"--workdir={workdir}: another run is working in it") from None
        try:
            yield workdir
        finally:
            _leave(workdir, existed)


def _leave(workdir: Path, existed: bool) -> None:
    """Removes a directory made for nothing: a mistake was found before there was a checkpoint or a line of metrics."""
    made = {entry.name for entry in workdir.iterdir()}
    trained = any(path.is_file() for path in (workdir / "checkpoints").rglob("*"))
    if not existed and not trained and made <= {".lock", "config.json", "checkpoints"}:
        shutil.rmtree(workdir)


def describe(config: Config, data_hash: str, classes: int, images: int, shape: tuple[int, int]) -> dict[str, Any]:
    """What `config.json` holds: the resolved configuration and where the run comes from.

    Args:
      config: of the run.
      data_hash: of names and labels of its splits, and of the pixels of prepared ones.
      classes: number of training classes.
      images: number of training images.
      shape: (height, width) of an image; with these numbers, all that is needed to rebuild the model without the data.
    """
    return {
        "config": asdict(config),
        "hash": configs.digest(config),
        "data_hash": data_hash,
        "classes": classes,
        "images": images,
        "shape": list(shape),
        "commit": _commit(),
        "versions": {"dml_jax": _own_version(), **{name: version(name) for name in LIBRARIES}},
    }


def _commit() -> str | None:
    """The git commit this package was run from, "-dirty" behind it where files differ; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None


def _own_version() -> str | None:
    try:
        return version("dml_jax")
    except ModuleNotFoundError:
        return None
