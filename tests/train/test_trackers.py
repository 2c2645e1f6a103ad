"""TensorBoard and Weights & Biases show the lines of `metrics.jsonl`, each once, and do not change them."""

import json
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dml_jax import run
from dml_jax.analysis import run_report
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.records import jsonl
from tests.train.experiments import small
from tests.train.test_loop import StopAt, train

write_report = run_report.write  # which the fixtures of these tests replace
QUIET = Console(quiet=True)
CONFIG = small(steps=6, log_every=2, evaluate_every=5, checkpoint_every=3)


def event_scalars(directory: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of the scalars in the only event file, in order; the framing is that of TFRecord."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = directory.iterdir()
    content, found = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        found += [(event.step, v.tag, v.simple_value) for v in event.summary.value if v.HasField("simple_value")]
    return found


class Service:
    """Stands for wandb and its server, which keeps runs by id and drops steps that it has."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self.summary: dict[str, Any] = {}
        self.exit_codes: list[int] = []
        self.Settings = SimpleNamespace
        self.Image = Path

    def init(self, *, id: str, resume: str, **options: Any) -> SimpleNamespace:
        assert resume == "allow"
        history = self.runs.setdefault(id, [])
        first = history[-1][0] + 1 if history else 0

        def log(values: dict[str, Any], step: int | None = None) -> None:
            assert step is None or step >= first, "wandb would drop this with a warning"
            history.append((history[-1][0] if step is None else step, values))

        return SimpleNamespace(
            starting_step=first, log=log, summary=self.summary,
            finish=lambda exit_code: self.exit_codes.append(exit_code),
        )  # fmt: skip


@pytest.mark.slow
def test_an_interrupted_run_shows_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX")
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)  # type: ignore[arg-type]
    train(experiments.build(CONFIG), tmp_path / "plain")
    directory = tmp_path / "shown"
    monkeypatch.setattr(run_report, "write", write_report)
    with pytest.raises(Interrupted):
        run.train(CONFIG, directory, QUIET, StopAt(5), ("tensorboard",))
    run.train(CONFIG, directory, QUIET, Stop(), ("tensorboard", "wandb"))

    assert (directory / "metrics.jsonl").read_bytes() == (tmp_path / "plain" / "metrics.jsonl").read_bytes()
    lines = [json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines()]
    results = json.loads((directory / "results.json").read_text())
    scalars = event_scalars(directory / "tensorboard")
    assert [(step, value) for step, tag, value in scalars if tag == "train/loss"] == [
        (line["step"], pytest.approx(line["loss"])) for line in lines
    ]
    tags = {tag for _, tag, _ in scalars}
    assert {"train/grad_norm", "health/effective_rank", "test/recall_at_1", "final/recall_at_1"} <= tags

    (history,) = service.runs.values()
    *logged, (_, pictures) = history
    assert [(step, values["train/loss"]) for step, values in logged] == [(line["step"], line["loss"]) for line in lines]
    drawn = {f"figures/{path.stem}": str(path) for path in (directory / "figures").glob("*.png")}
    assert {"figures/loss", "figures/recall"} <= set(drawn)
    assert {name: str(path) for name, path in pictures.items()} == drawn
    assert service.summary["final/recall@1"] == results["recall@1"]
    assert service.exit_codes == [0]


@pytest.mark.slow
def test_wandb_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run.train(CONFIG, tmp_path / "run", QUIET, Stop(), ("wandb",))
    (file,) = tmp_path.rglob("run-*.wandb")
    assert file.read_bytes().count(b"train/loss") >= 3


def test_wandb_continues_where_its_server_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have fewer lines than the checkpoint, or more."""
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)  # type: ignore[arg-type]

    def run(*, kept: int, steps: range) -> None:
        with jsonl.TrackedLines(tmp_path / "metrics.jsonl", ("wandb",), CONFIG) as lines:
            lines.truncate(kept)
            for step in steps:
                lines.write({"step": step, "loss": 0.5, "warnings": {"rank": "…"}})

    run(kept=0, steps=range(1, 5))
    (history,) = service.runs.values()
    del history[2:]  # not sent before the machine stopped
    run(kept=3, steps=range(4, 7))
    assert [step for step, _ in history] == [1, 2, 3, 4, 5, 6]
    run(kept=4, steps=range(5, 9))
    assert [step for step, _ in history] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(values == {"train/loss": 0.5} for _, values in history)
    assert len(service.runs) == 1


def test_a_failed_start_leaves_no_work_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Service):
        def init(self, **options: Any) -> SimpleNamespace:
            raise self.Error("No API key configured.\nmore")

    monkeypatch.setitem(sys.modules, "wandb", Broken())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^--log=wandb: No API key configured; log in, or set WANDB_MODE"):
        run.train(CONFIG, tmp_path / "run", QUIET, Stop(), ("wandb",))
    assert list(tmp_path.iterdir()) == []
