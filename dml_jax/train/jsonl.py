"""Lines of JSON on disk: `metrics.jsonl` holds what depends on the run alone, `timing.jsonl` the clock's readings."""

import json
import os
from pathlib import Path
from typing import Any

from dml_jax.errors import CheckpointError
from dml_jax.files import atomic_write


class Records:
    """One object a line, each with its `step`, in order of the steps.

    Args:
      path: the file; made when the first line is written.
      active: False on all processes but the first, which then write nothing.
    """

    def __init__(self, path: Path, active: bool = True):
        self.path = path
        self.active = active

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line and has it on disk before returning, so that no checkpoint is ever ahead of it."""
        if not self.active:
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; a last one that a killed run left torn is left out.

        Raises:
          CheckpointError: another line is not what a run writes; names it.
        """
        lines: list[dict[str, Any]] = []
        if not self.path.exists():
            return lines
        texts = self.path.read_bytes().splitlines(keepends=True)
        for number, text in enumerate(texts, start=1):
            try:
                line = json.loads(text)
                if not isinstance(line["step"], int):
                    raise TypeError
            except (ValueError, KeyError, TypeError):
                if number == len(texts) and not text.endswith(b"\n"):
                    break
                raise CheckpointError(
                    f"{self.path}: line {number} is damaged; delete the line, or take the file from a copy"
                ) from None
            lines.append(line)
        return lines

    def cut(self, step: int) -> None:
        """Drops lines after `step`, and a torn one: the resumed run writes them again."""
        if not self.active or not self.path.exists():
            return
        kept = [line for line in self.read() if line["step"] <= step]
        with atomic_write(self.path) as draft:
            draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
