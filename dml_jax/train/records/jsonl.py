"""Logs as lines of JSON: `metrics.jsonl` is a function of the run alone, `timing.jsonl` holds clock readings."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dml_jax import manifest
from dml_jax.errors import CheckpointError
from dml_jax.files import atomic_write, name_file


class JsonLines:
    """A file with one JSON object per line, each with a `step`, in order; only an `active` process writes it."""

    def __init__(self, path: Path, active: bool = True):
        self.path = path
        self.active = active

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line, which is on disk on return, so that no checkpoint is ever ahead of the log."""
        if not self.active:
            return
        try:
            with name_file(self.path), open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path.parent}: was moved or deleted while it was used; give the same command with its new path "
                "as --workdir"
            ) from None

    def read(self) -> list[dict[str, Any]]:
        """All complete lines; an incomplete last one, left by a killed run, is ignored."""
        lines: list[dict[str, Any]] = []
        if not self.path.exists():
            return lines
        manifest.check_file(self.path, CheckpointError)
        texts = self.path.read_bytes().splitlines(keepends=True)
        for number, text in enumerate(texts, start=1):
            try:
                line = json.loads(text)
                if not isinstance(line["step"], int):
                    raise TypeError
            except (ValueError, KeyError, TypeError, RecursionError):
                if number == len(texts) and not text.endswith(b"\n"):
                    break
                raise CheckpointError(
                    f"{self.path}: line {number} is damaged; delete the line or restore the file from a copy"
                ) from None
            lines.append(line)
        return lines

    def digest(self) -> str:
        """SHA-256 of the lines; empty if there are none."""
        text = self.path.read_bytes() if self.path.exists() else b""
        return hashlib.sha256(text).hexdigest() if text else ""

    def truncate(self, step: int) -> None:
        """Removes lines after `step`, and an incomplete one: the resumed run writes them again."""
        if not self.active or not self.path.exists():
            return
        kept = [line for line in self.read() if line["step"] <= step]
        with atomic_write(self.path) as draft:
            draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
