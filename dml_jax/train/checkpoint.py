"""Checkpoints of the complete train state, verified before they are read.

`<workdir>/checkpoints/latest` keeps the newest few, and one every `train.keep_every` steps for
analyses. `…/best` keeps the best few, in a separate directory so that neither deletes the other's.
`…/first` keeps the state before the first step if it is a candidate for the reported model
(`train.select="folds"`). Orbax writes each into a temporary directory and renames it; a manifest,
written last, marks it as complete and names its run. A killed run leaves nothing that could be
mistaken for a checkpoint, and damage or checkpoints of another run are detected before anything is
restored.

Training continues while a checkpoint is written, but only until the next one: everything that
reads, deletes or writes checkpoints waits for it first. So checkpoints are completed in order, and
the oldest is deleted once a newer one is complete. If storage fails for one checkpoint of `latest`,
training continues; if it fails for the next one, too, training ends.
"""

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from dml_jax import buckets, seal
from dml_jax.errors import CheckpointError, exit_code_of
from dml_jax.files import name_file, reason
from dml_jax.train.distributed import process_group
from dml_jax.train.records import workdir
from dml_jax.train.step import TrainState

# Several, in case one is corrupt or the best is newer than the latest.
KEPT = {"latest": 3, "best": 2, "first": 1}
KIND, CORRUPT = "checkpoint", "the checkpoint is corrupt"
ON_DISK = ("step", "params", "method", "optimizer")  # names of the fields of `TrainState` on disk


def _to_disk(state: TrainState) -> dict[str, Any]:
    return dict(zip(ON_DISK, state, strict=True))


class Checkpoints:
    """The checkpoints of a run, in `directory`; `run` holds the contents of its `config.json`.

    `template` gives the shapes, dtypes and shardings to restore. `warn` is called with a message
    for each unreadable checkpoint; if None, that is an error. Without `writing`, no file is
    changed, because a run may be writing them. Checkpoints of `latest` whose step is a multiple of
    `keep_every` are never deleted.
    """

    def __init__(
        self,
        directory: Path,
        template: Callable[[], TrainState],
        warn: Callable[[str], None] | None,
        *,
        run: Mapping[str, Any],
        writing: bool = True,
        keep_every: int = 0,
    ):
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax also raises the errors it logs
        self.directory = buckets.origin(directory)
        self.run = workdir.identity(run)
        self._workdir = directory.absolute().parent
        self._keep_every = keep_every
        self._template = template
        self._warn = warn
        self._writing = writing
        self._background = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._saved = ""  # kind of the last checkpoint
        self._failed = False  # whether the last checkpoint could not be written
        # Otherwise, threads that wait for directories keep a process alive for 20 minutes after
        # storage has failed.
        options = ocp.AsyncOptions(create_directories_asynchronously=False)
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(), async_options=options
        )
        if writing:
            process_group.decided_by_first(self._remove_incomplete)

    def _remove_incomplete(self) -> None:
        """Removes incomplete checkpoints of a killed run."""
        for directory in (self.directory / kind for kind in KEPT):
            complete = workdir.complete_checkpoints(directory)
            for path in set(directory.glob("*")).difference(complete):
                if path.name.isdecimal():
                    epath.Path(path).rmtree()
            epath.Path(directory).mkdir(parents=True, exist_ok=True)

    def save(
        self, kind: str, state: TrainState, notes: dict[str, Any], *, background: bool = False
    ) -> None:
        """Writes a checkpoint of a kind in KEPT, with notes for resuming (JSON).

        On return, it is on disk or, in the `background`, the state has been copied to the host and
        may be donated.
        """
        self._wait_for_previous()
        path, values = self.directory / kind / str(int(state.step)), _to_disk(state)
        single = jax.process_count() == 1
        if single:  # even the first request to storage may take minutes
            values = jax.tree.map(np.array, values)
        saved = ocp.args.StandardSave(values)
        items = ocp.args.Composite(state=saved, notes=ocp.args.JsonSave(notes))
        if not single:  # orbax copies the shards of all processes, which wait for each other
            self._begin(path, items)
        self._pending = self._background.submit(self._write, path, items if single else None)
        self._saved = kind
        if not background:
            self.wait()

    def _wait_for_previous(self) -> None:
        """Waits for the previous checkpoint; storage may fail for one of `latest`."""
        try:
            self.wait()
        except Exception as error:
            lost = exit_code_of(error) == os.EX_TEMPFAIL and self._saved == "latest"
            if not lost or self._failed or self._warn is None:
                raise
            self._failed = True
            outlook = "training continues, but ends if the next checkpoint cannot be written either"
            self._warn(f"{error}; {outlook}")

    def _begin(self, path: Path, items: ocp.args.Composite) -> None:
        with buckets.reaching(str(path)), name_file(path):
            buckets.check_writer(self._workdir)
            # Replaces a checkpoint from before an interrupted evaluation; if killed now, the run
            # resumes from an earlier one.
            self._checkpointer.save(path, items, force=True)

    def _write(self, path: Path, items: ocp.args.Composite | None) -> None:
        """Writes a checkpoint, uploads the records, then marks it as complete."""
        if items is not None:
            self._begin(path, items)
        with buckets.reaching(str(path)), name_file(path):
            self._checkpointer.wait_until_finished()
            if jax.process_index() == 0:
                buckets.upload(self._workdir, "*.json*", "logs/*")
                seal.close(path, KIND, about={"run": self.run})
                for oldest in workdir.complete_checkpoints(path.parent)[: -KEPT[path.parent.name]]:
                    if not self._is_permanent(oldest):
                        _delete(oldest)

    def _is_permanent(self, path: Path) -> bool:
        every = self._keep_every
        return path.parent.name == "latest" and every > 0 and int(path.name) % every == 0

    def wait(self) -> None:
        """Waits until the pending checkpoint is on disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            self._failed = False

    def holds(self, step: int) -> bool:
        """Whether the checkpoint of a step is on disk; all processes must call this."""
        self.wait()
        return process_group.decided_by_first(lambda: step in self.steps())

    def steps(self, kind: str = "latest") -> list[int]:
        return [int(path.name) for path in workdir.complete_checkpoints(self.directory / kind)]

    def restore(
        self, kind: str = "latest", step: int | None = None
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """(state, notes) of the checkpoint of a step or, by default, of the newest intact one."""
        self.wait()
        if step is not None:
            steps = self.steps(kind)
            if step not in steps:
                available, folder = ", ".join(map(str, steps)) or "none", self.directory / kind
                raise CheckpointError(
                    f"--checkpoint={step}: not in {folder}; available: {available}"
                )
            path = self.directory / kind / str(step)
            stored = seal.read(path, KIND, error=CheckpointError, remedy=CORRUPT)
            workdir.check_same_facts(path, stored.about.get("run", {}), self.run)
            return self._read(kind, step)
        newest = process_group.decided_by_first(lambda: self._newest_intact(kind))
        return None if newest < 0 else self._read(kind, newest)

    def _newest_intact(self, kind: str) -> int:
        """The step of the newest intact checkpoint, or -1; deletes corrupt ones with a warning."""
        steps = self.steps(kind)
        for candidate in reversed(steps):
            path = self.directory / kind / str(candidate)
            try:
                stored = seal.read(path, KIND, error=CheckpointError, remedy=CORRUPT)
                run = stored.about.get("run", {})
            except CheckpointError as error:
                if isinstance(error.__cause__, OSError):  # e.g. permissions: it may be intact
                    raise
                remedy = "load an earlier one with --checkpoint=STEP"
                if candidate == steps[0]:
                    remedy = "it is the oldest one, so delete it and start again"
                if candidate == steps[0] or self._warn is None:
                    raise CheckpointError(f"{error}; {remedy}") from error
                self._warn(f"{error}; falling back to the previous one")
                if self._writing:
                    _delete(path)
            else:
                workdir.check_same_facts(path, run, self.run)
                return candidate
        return -1

    def restore_selected(self, checkpoint: str, select: str) -> TrainState:
        """The state for a value of `--checkpoint` in a run with this `train.select`."""
        folds = select == "folds"
        if checkpoint == "reported":
            checkpoint = "latest" if select == "last" or not self.steps("best") else "best"
        kinds = {"latest": ["latest"], "best": ["best"]}
        kinds |= {"layer": ["first"], "trained": ["latest"], "halfway": ["first", "latest"]}
        number = int(checkpoint) if checkpoint.isdecimal() else None
        if number is None and checkpoint not in (kinds if folds else ("latest", "best")):
            candidates = ", layer, trained, halfway" if folds else ""
            raise CheckpointError(
                f"--checkpoint={checkpoint}: must be reported, latest, best{candidates} or a step"
            )
        states = []
        for kind in kinds.get(checkpoint, ["latest"]):
            if (restored := self.restore(kind, number)) is None:
                missing = f"there is no checkpoint in {self.directory}"
                raise CheckpointError(f"--checkpoint={checkpoint}: {missing}; train first")
            states.append(restored[0])
        return mean_weights(*states) if len(states) > 1 else states[0]

    def drop_newer(self, kind: str, step: int) -> None:
        """Deletes checkpoints after `step`, which the resumed run will write again."""
        self.wait()

        def drop() -> None:
            for number in self.steps(kind):
                if number > step:
                    _delete(self.directory / kind / str(number))

        process_group.decided_by_first(drop)

    def _read(self, kind: str, step: int) -> tuple[TrainState, dict[str, Any]]:
        path = self.directory / kind / str(step)
        state = ocp.args.StandardRestore(_to_disk(self._template()))
        items = ocp.args.Composite(state=state, notes=ocp.args.JsonRestore())
        try:
            with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
                restored = checkpointer.restore(path, args=items)
        except Exception as error:  # orbax and tensorstore raise many types of exceptions
            raise CheckpointError(f"{path}: does not fit this model ({reason(error)})") from error
        return TrainState(*(restored.state[name] for name in ON_DISK)), dict(restored.notes)

    def close(self) -> None:
        """Waits until everything is on disk, and stops the threads."""
        try:
            self.wait()
        finally:
            self._background.shutdown()
            with suppress(Exception):  # `save` or `wait` has already raised it
                self._checkpointer.close()


def mean_weights(first: TrainState, last: TrainState) -> TrainState:
    """`last` with the mean of both states' variables; counters are those of `last`."""

    def mean(before: jax.Array, after: jax.Array) -> jax.Array:
        return (before + after) / 2 if jnp.issubdtype(after.dtype, jnp.floating) else after

    both = ((state.params, state.model_state) for state in (first, last))
    params, model_state = jax.tree.map(mean, *both)
    return last._replace(params=params, model_state=model_state)


def _delete(path: Path) -> None:
    """Deletes a checkpoint, its manifest first, so that it never seems complete."""
    (path / seal.MANIFEST).unlink(missing_ok=True)
    epath.Path(path).rmtree()
