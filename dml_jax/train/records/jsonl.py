"""Logs as lines of JSON: `metrics.jsonl` is a function of the run alone, `timing.jsonl` holds clock readings."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pydantic

from dml_jax import manifest
from dml_jax.config import Config, flatten
from dml_jax.errors import CheckpointError
from dml_jax.files import atomic_write, name_file, reading


@dataclass
class _Line:
    step: pydantic.StrictInt


class JsonLines:
    """A file with one JSON object per line, each with a `step`, in order; only an `active` process writes it.

    `show`, if given, gets the lines that are left when the file is truncated, and then every new one.
    """

    def __init__(self, path: Path, active: bool = True, show: Callable[[dict[str, Any]], None] | None = None):
        self.path = path
        self.active = active
        self._show = show

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line and flushes it to disk, so that no checkpoint is ever ahead of the log."""
        if not self.active:
            return
        with name_file(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._show:
            self._show(line)

    def read(self) -> list[dict[str, Any]]:
        """All complete lines; an incomplete last one, left by a killed run, is ignored."""
        if not self.path.exists():
            return []
        manifest.check_file(self.path, CheckpointError)
        with reading(self.path, "restore it from a copy", CheckpointError):
            complete, _, _ = self.path.read_text(encoding="utf-8").rpartition("\n")
            lines: list[dict[str, Any]] = [json.loads(text) for text in complete.splitlines()]
            pydantic.TypeAdapter(list[_Line]).validate_python(lines)
        return lines

    def truncate(self, step: int) -> None:
        """Removes lines after `step`, and an incomplete one: the resumed run writes them again."""
        if not self.active or not self.path.exists():
            return
        kept = [line for line in self.read() if line["step"] <= step]
        with atomic_write(self.path) as draft:
            draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        if self._show:
            for line in kept:
                self._show(line)


def tensorboard(directory: Path, config: Config) -> Callable[[dict[str, Any]], None]:
    """A function that shows lines of `metrics.jsonl` in TensorBoard; event files of an earlier start are removed."""
    from tensorboardX import SummaryWriter

    shutil.rmtree(directory, ignore_errors=True)
    # A TensorBoard that shows the removed files forgets their steps from `purge_step` on.
    writer = SummaryWriter(str(directory), purge_step=0)
    table = "".join(f"| {key} | {value} |\n" for key, value in flatten(asdict(config)).items())
    writer.add_text("configuration", f"| key | value |\n|---|---|\n{table}")

    def show(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                tag = name if "/" in name else f"train/{name}"
                writer.add_scalar(tag.replace("@", "_at_"), value, line["step"])  # "@" is not allowed in a tag
        writer.flush()

    return show
