"""Logs as lines of JSON: `metrics.jsonl` is a function of the run alone, `timing.jsonl` holds clock readings.

When a run starts or continues, each tracker gets the lines of `metrics.jsonl` up to the checkpoint and then every new
one, so that no step is shown twice and a tracker may be added later.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dml_jax import manifest
from dml_jax.config import Config, flatten
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.files import atomic_write, name_file


class JsonLines:
    """A file with one JSON object per line, each with a `step`, in order; only an `active` process writes it."""

    def __init__(self, path: Path, active: bool = True):
        self.path = path
        self.active = active

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line and flushes it to disk, so that no checkpoint is ever ahead of the log."""
        if not self.active:
            return
        with name_file(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

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

    def truncate(self, step: int) -> None:
        """Removes lines after `step`, and an incomplete one: the resumed run writes them again."""
        if not self.active or not self.path.exists():
            return
        kept = [line for line in self.read() if line["step"] <= step]
        with atomic_write(self.path) as draft:
            draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


class TensorBoard:
    """Event files in `<workdir>/tensorboard`, rewritten each time the run is started or continued."""

    first_step = 0  # lines before it are shown already

    def __init__(self, directory: Path, config: Config):
        from tensorboardX import SummaryWriter

        shutil.rmtree(directory, ignore_errors=True)
        # A TensorBoard that shows the removed files forgets their steps from `purge_step` on.
        self._writer = SummaryWriter(str(directory), purge_step=0)
        table = "".join(f"| {key} | {value} |\n" for key, value in flatten(asdict(config)).items())
        self._writer.add_text("configuration", f"| key | value |\n|---|---|\n{table}")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name.replace("@", "_at_"), value, step)  # "@" is not allowed in a tag

    def finish(self, step: int, results: Mapping[str, float], figures: Sequence[Path]) -> None:
        self.write(step, results)
        for path in figures:
            with Image.open(path, formats=("PNG",)) as image:
                pixels = np.asarray(image.convert("RGB"))
            self._writer.add_image(f"figures/{path.stem}", pixels, step, dataformats="HWC")

    def close(self, succeeded: bool) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, continued under the id in `<workdir>/wandb/run_id`."""

    def __init__(self, directory: Path, config: Config):
        import wandb

        file = directory / "run_id"
        directory.mkdir(exist_ok=True)
        if not file.exists():
            file.write_text(uuid.uuid4().hex)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "dml_jax"),
                name=directory.resolve().parent.name,
                id=file.read_text().strip(),
                resume="allow",
                dir=directory.parent,
                config=flatten(asdict(config)),
                allow_val_change=True,  # a continued run may have more steps
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ConfigError(f"--log=wandb: {reason}; log in, or set WANDB_MODE=offline") from None
        self._picture = wandb.Image
        self.first_step = int(self._run.starting_step)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def finish(self, step: int, results: Mapping[str, float], figures: Sequence[Path]) -> None:
        # Without a step: W&B may have had a later one than the checkpoint from which the run was continued.
        self._run.log({f"figures/{path.stem}": self._picture(str(path)) for path in figures})
        self._run.summary.update(results)

    def close(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)


class TrackedLines(JsonLines):
    """`metrics.jsonl`, also shown by trackers, which start when it is truncated; a context that closes them."""

    def __init__(self, path: Path, names: Sequence[str], config: Config, active: bool = True):
        super().__init__(path, active)
        self._names = names if active else ()
        self._config = config
        self._trackers: list[TensorBoard | Wandb] = []

    def truncate(self, step: int) -> None:
        """Removes lines after `step`, then starts the trackers and shows them the others."""
        super().truncate(step)
        makers: dict[str, Callable[[Path, Config], TensorBoard | Wandb]] = {"tensorboard": TensorBoard, "wandb": Wandb}
        self._trackers += [makers[name](self.path.parent / name, self._config) for name in self._names]
        for line in self.read() if self._trackers else ():
            self._show(line)

    def write(self, line: dict[str, Any]) -> None:
        super().write(line)
        self._show(line)

    def _show(self, line: dict[str, Any]) -> None:
        for tracker in self._trackers:
            if line["step"] >= tracker.first_step:
                tracker.write(line["step"], numbers(line))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Shows the contents of `results.json` and the figures of the run."""
        final = {f"final/{name}": value for name, value in results.items() if isinstance(value, float)}
        for tracker in self._trackers:
            tracker.finish(results["steps"], final, sorted((self.path.parent / "figures").glob("*.png")))

    def __enter__(self) -> "TrackedLines":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for tracker in self._trackers:
            tracker.close(error is None)


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl`, with the training's below "train/"."""
    return {
        name if "/" in name else f"train/{name}": value
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float)
    }
