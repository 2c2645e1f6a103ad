"""TensorBoard and Weights & Biases, which show the lines of `metrics.jsonl`.

`metrics.jsonl` stays the record of a run. When a run starts or continues, each tracker gets the lines up to the
checkpoint and then every new one, so that no step is shown twice and a tracker may be added halfway.
"""

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from PIL import Image

from dml_jax.config import Config, flatten
from dml_jax.errors import ConfigError
from dml_jax.train.records.jsonl import JsonLines


class TensorBoard:
    """Event files in `<workdir>/tensorboard`, rewritten each time the run is started or continued."""

    first_step = 0  # lines before it are shown already

    def __init__(self, workdir: Path, config: Config):
        from tensorboardX import SummaryWriter

        directory = workdir / "tensorboard"
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

    def __init__(self, workdir: Path, config: Config):
        import wandb

        file = workdir / "wandb" / "run_id"
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            file.write_text(uuid.uuid4().hex)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "dml_jax"),
                name=workdir.resolve().name,
                id=file.read_text().strip(),
                resume="allow",
                dir=workdir,
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
    """`metrics.jsonl`, whose lines are also shown by trackers; a context that closes them.

    `names` are "tensorboard", "wandb" or both, which start when the file is truncated to what the run continues from.
    """

    def __init__(self, path: Path, names: Sequence[str], config: Config, active: bool = True):
        super().__init__(path, active)
        self._names = names if active else ()
        self._config = config
        self._trackers: list[TensorBoard | Wandb] = []

    def truncate(self, step: int) -> None:
        """Removes lines after `step`, then starts the trackers and shows them the others."""
        super().truncate(step)
        for name in self._names:
            tracker = (TensorBoard if name == "tensorboard" else Wandb)(self.path.parent, self._config)
            self._trackers.append(tracker)
            for line in self.read():
                if line["step"] >= tracker.first_step:
                    tracker.write(line["step"], numbers(line))

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line, which is on disk on return, and shows it."""
        super().write(line)
        for tracker in self._trackers:
            if line["step"] >= tracker.first_step:
                tracker.write(line["step"], numbers(line))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Shows the contents of `results.json` and the figures of the run."""
        final = {f"final/{name}": value for name, value in results.items() if isinstance(value, float)}
        for tracker in self._trackers:
            tracker.finish(results["steps"], final, sorted((self.path.parent / "figures").glob("*.png")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in self._trackers:
            tracker.close(error is None)


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl`, those of the training below "train/"."""
    return {
        name if "/" in name else f"train/{name}": value
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float)
    }
