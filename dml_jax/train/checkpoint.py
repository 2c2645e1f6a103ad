"""Checkpoints that hold the whole run, verified when they are read.

`<workdir>/checkpoints/latest` keeps the newest few, `…/best` the best ones; apart, so that neither cleans up the other.
Orbax writes each into a temporary directory and renames it; a manifest of its files' digests, written last, makes it
whole. A killed run leaves nothing that could be taken for a checkpoint, and damage is found before anything is read.
"""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from dml_jax.errors import CheckpointError
from dml_jax.files import sha256, write_json
from dml_jax.train.state import TrainState

KEPT = {
    "latest": 3,
    "best": 2,
}  # more than one: a corrupt one, or a best newer than the latest, has a predecessor
MANIFEST = "sha256.json"
ON_DISK = ("step", "params", "method", "optimizer")  # names of the fields of `TrainState` in a checkpoint


def _to_disk(state: TrainState) -> dict[str, Any]:
    return dict(zip(ON_DISK, state, strict=True))


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below a directory, by relative path, its manifest left out."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            found[str(path.relative_to(directory))] = sha256(path)
    return found


class Checkpoints:
    """The checkpoints of one work directory.

    Args:
      directory: `<workdir>/checkpoints`.
      template: () -> a State of the right structure, shapes, dtypes and shardings (arrays or ShapeDtypeStructs).
      warn: told one sentence about each checkpoint that cannot be read.
      writing: False for readers, which leave alone what a run may be writing at the same time.
    """

    def __init__(
        self,
        directory: Path,
        template: Callable[[], TrainState],
        warn: Callable[[str], None],
        *,
        writing: bool = True,
    ):
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # what orbax logs as an error it raises too
        self.directory = directory.absolute()
        self._template = template
        self._warn = warn
        self._writing = writing
        self._managers = {kind: self._manager(kind, keep) for kind, keep in KEPT.items()}

    def _manager(self, kind: str, keep: int) -> ocp.CheckpointManager:
        if self._writing and jax.process_index() == 0:
            for unfinished in self.directory.glob(f"{kind}/*"):
                if unfinished.name.isdigit() and not (unfinished / MANIFEST).exists():
                    shutil.rmtree(unfinished)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep if self._writing else None,
            create=self._writing,
            cleanup_tmp_directories=self._writing,
            enable_async_checkpointing=False,
            read_only=not self._writing,
        )
        return ocp.CheckpointManager(self.directory / kind, options=options)

    def save(self, kind: str, state: TrainState, notes: dict[str, Any]) -> None:
        """Writes a checkpoint of `state` and returns when it is on disk.

        Args:
          kind: "latest" or "best".
          state: everything to keep; its step names the checkpoint.
          notes: what the loop wants back on resuming (JSON).

        Raises:
          CheckpointError: it could not be written.
        """
        step = int(state.step)
        manager = self._managers[kind]
        if step in manager.all_steps():
            manager.delete(step)
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(_to_disk(state)),
            notes=ocp.args.JsonSave(notes),
        )
        try:
            saved = manager.save(step, args=items)
            if saved and jax.process_index() == 0:
                path = self.directory / kind / str(step)
                write_json(path / MANIFEST, digests(path))
        except (OSError, ValueError) as error:  # a full disk is a ValueError of tensorstore
            reason = (isinstance(error, OSError) and error.strerror) or str(error).strip().partition("\n")[0][:200]
            raise CheckpointError(f"{self.directory / kind / str(step)}: cannot be written ({reason})") from error
        if not saved:
            raise CheckpointError(f"{self.directory / kind / str(step)}: was not written; a newer one is in the way")

    def steps(self, kind: str = "latest") -> list[int]:
        """Steps of the whole checkpoints on disk, oldest first."""
        directory = self.directory / kind
        return sorted(int(path.parent.name) for path in directory.glob(f"*/{MANIFEST}") if path.parent.name.isdigit())

    def restore(self, kind: str = "latest", step: int | None = None) -> tuple[TrainState, dict[str, Any]] | None:
        """Reads a checkpoint; a corrupt newest one is named, deleted, and the one before it read instead.

        Args:
          kind: "latest" or "best".
          step: which one; None for the newest, or nothing if there is none.

        Raises:
          CheckpointError: `step` is not there or corrupt, or there are checkpoints and none can be read.
        """
        steps = self.steps(kind)
        if step is not None:
            if step not in steps:
                known = ", ".join(map(str, steps)) or "none"
                raise CheckpointError(f"--checkpoint={step}: not in {self.directory / kind}; there: {known}")
            return self._read(kind, step)
        for candidate in reversed(steps):
            try:
                found = self._read(kind, candidate)
            except CheckpointError as error:
                if candidate == steps[0]:
                    raise CheckpointError(f"{error}; no earlier one is left, so delete it and start again") from error
                self._warn(f"{error}; falling back to the one before")
                if self._writing:
                    self._drop(kind, candidate)
                continue
            return found
        return None

    def selected(self, checkpoint: str, select: str) -> TrainState:
        """The state a user names.

        Args:
          checkpoint: "reported", "latest", "best" or a step.
          select: `train.select`, which says what is reported.

        Raises:
          CheckpointError: there is no such one.
        """
        if checkpoint == "reported":
            checkpoint = "latest" if select == "last" else "best"
        number = int(checkpoint) if checkpoint.isdecimal() else None
        if number is None and checkpoint not in ("latest", "best"):
            raise CheckpointError(f"--checkpoint={checkpoint}: must be reported, latest, best or a step")
        found = self.restore("best" if checkpoint == "best" else "latest", number)
        if found is None:
            raise CheckpointError(f"--checkpoint={checkpoint}: {self.directory} holds none")
        return found[0]

    def _drop(self, kind: str, step: int) -> None:
        if jax.process_index() == 0:
            shutil.rmtree(self.directory / kind / str(step))
        self._managers[kind].reload()

    def drop_newer(self, kind: str, step: int) -> None:
        """Deletes the checkpoints after `step`: the resumed run will make them again."""
        for newer in self.steps(kind):
            if newer > step:
                self._managers[kind].delete(newer)

    def _read(self, kind: str, step: int) -> tuple[TrainState, dict[str, Any]]:
        path = self.directory / kind / str(step)
        _verify(path)
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(_to_disk(self._template())), notes=ocp.args.JsonRestore()
        )
        try:
            restored = self._managers[kind].restore(step, args=items)
        except (ValueError, KeyError, TypeError) as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise CheckpointError(f"{path}: does not fit this model ({reason})") from error
        return TrainState(*(restored.state[name] for name in ON_DISK)), dict(restored.notes)

    def close(self) -> None:
        """Releases orbax's threads."""
        for manager in self._managers.values():
            manager.close()


def _verify(path: Path) -> None:
    """Raises CheckpointError unless every file is as it was written."""
    try:
        expected = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(f"{path}: the checkpoint was not finished") from None
    found = digests(path)
    damaged = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if damaged:
        raise CheckpointError(f"{path}: the checkpoint is corrupt, {damaged[0]} is not as it was written")
