"""Checkpoints that hold the whole run, verified when they are read.

`<workdir>/checkpoints/latest` keeps the newest few, `…/best` the best ones; apart, so that neither cleans up the other.
Orbax writes each into a temporary directory and renames it, so a killed run leaves only whole ones.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from dml_jax.errors import CheckpointError
from dml_jax.train.state import State

KEPT = {"latest": 3, "best": 2}  # more than one: a corrupt one, or a best newer than the latest, has a predecessor


def checksum(tree: Any) -> str:
    """SHA-256 over the paths, shapes, dtypes and bytes of a tree's arrays."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class Checkpoints:
    """The checkpoints of one work directory.

    Args:
      directory: `<workdir>/checkpoints`.
      template: () -> a State of the right structure, shapes, dtypes and shardings (arrays or ShapeDtypeStructs).
      warn: told one sentence about each checkpoint that cannot be read.
    """

    def __init__(self, directory: Path, template: Callable[[], State], warn: Callable[[str], None]):
        logging.getLogger("absl").setLevel(logging.ERROR)
        self.directory = directory.absolute()
        self._template = template
        self._warn = warn
        self._managers = {kind: self._manager(kind, keep) for kind, keep in KEPT.items()}

    def _manager(self, kind: str, keep: int) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, cleanup_tmp_directories=True, enable_async_checkpointing=False
        )
        return ocp.CheckpointManager(self.directory / kind, options=options)

    def save(self, kind: str, state: State, notes: dict[str, Any]) -> None:
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
            state=ocp.args.StandardSave(state._asdict()),
            notes=ocp.args.JsonSave({**notes, "checksum": checksum(state)}),
        )
        try:
            saved = manager.save(step, args=items)
        except OSError as error:
            raise CheckpointError(f"{self.directory / kind / str(step)}: cannot be written ({error})") from error
        if not saved:
            raise CheckpointError(f"{self.directory / kind / str(step)}: was not written; a newer one is in the way")

    def steps(self, kind: str = "latest") -> list[int]:
        """Steps of the whole checkpoints on disk, oldest first."""
        return sorted(self._managers[kind].all_steps())

    def restore(self, kind: str = "latest", step: int | None = None) -> tuple[State, dict[str, Any]] | None:
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
                self._drop(kind, candidate)
                continue
            return found
        return None

    def _drop(self, kind: str, step: int) -> None:
        if jax.process_index() == 0:
            shutil.rmtree(self.directory / kind / str(step))
        self._managers[kind].reload()

    def drop_newer(self, kind: str, step: int) -> None:
        """Deletes the checkpoints after `step`: the resumed run will make them again."""
        for newer in self.steps(kind):
            if newer > step:
                self._managers[kind].delete(newer)

    def _read(self, kind: str, step: int) -> tuple[State, dict[str, Any]]:
        path = self.directory / kind / str(step)
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(self._template()._asdict()), notes=ocp.args.JsonRestore()
        )
        try:
            restored = self._managers[kind].restore(step, args=items)
        except Exception as error:  # orbax and tensorstore raise many kinds for damaged files
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise CheckpointError(f"{path}: the checkpoint cannot be read ({reason})") from error
        state, notes = State(**restored.state), dict(restored.notes)
        if checksum(state) != notes.pop("checksum", None):
            raise CheckpointError(f"{path}: the checkpoint is corrupt (its checksum differs)")
        return state, notes

    def close(self) -> None:
        """Releases orbax's threads."""
        for manager in self._managers.values():
            manager.close()
