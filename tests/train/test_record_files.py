"""Files of a run: an incomplete last line of a log is left by a kill, any other damage is named; the speed of an
interval; the model of a run on the hub. Work directories have one configuration and one run at a time."""

import errno
import hashlib
import json
import struct
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import files, run, seal
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError, DataError
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.records import logs, model_files, workdir
from dml_jax.train.records.logs import JsonLines
from dml_jax.train.step import TrainState, digest
from tests.tiny_model import identity
from tests.train.experiments import small
from tests.train.loops import StopAt

WHOLE = ['{"step": 1, "loss": 0.5}', '{"step": 2, "loss": 0.25}', '{"step": 3, "loss": 0.125}']


def lines(folder: Path, text: str) -> JsonLines:
    (folder / "metrics.jsonl").write_text(text)
    return JsonLines(folder / "metrics.jsonl")


def test_an_incomplete_last_line_is_ignored_and_written_again(tmp_path: Path) -> None:
    incomplete = lines(tmp_path, "\n".join([*WHOLE[:2], WHOLE[2][:9]]))
    assert [line["step"] for line in incomplete.read()] == [1, 2]
    incomplete.truncate(2)
    incomplete.write({"step": 3, "loss": 0.125})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == WHOLE


def test_metrics_that_do_not_exist_are_null(tmp_path: Path) -> None:
    """JSON has no NaN."""
    lines(tmp_path, "").write({"step": 1, "test/map@r": float("nan")})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "test/map@r": null}\n'


def test_a_full_disk_names_the_file_that_is_replaced(tmp_path: Path, full_disk: Any) -> None:
    """The temporary file beside it is removed."""
    with full_disk(10), pytest.raises(OSError, match="File too large") as caught:
        files.write_json(tmp_path / "results.json", {"text": "long" * 1000})
    assert caught.value.filename == str(tmp_path / "results.json")
    assert list(tmp_path.iterdir()) == []


def test_the_summary_of_the_timing(tmp_path: Path) -> None:
    timing = JsonLines(tmp_path / "timing.jsonl")
    assert logs.summary(timing, 32) == {}
    for step, rate in ((10, 64.0), (20, 0), (40, 32.0)):  # 10 steps in 5 s, 20 in 20 s
        timing.write({"step": step, "images_per_second": rate, "peak_memory": 100 + step})
    assert logs.summary(timing, 32) == {"seconds": 25.0, "images_per_second": 48.0, "peak_memory": 140}


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


@pytest.mark.slow
def test_tensorboard_shows_every_line_once(tmp_path: Path) -> None:
    """Also those from before an interruption, and in a run that did not show them so far."""
    pytest.importorskip("tensorboardX")
    config = small(steps=6, log_every=2, evaluate_every=5, checkpoint_every=3)
    with pytest.raises(Interrupted):
        run.train(config, tmp_path, Console(quiet=True), StopAt(5), tensorboard=True)
    run.train(config, tmp_path, Console(quiet=True), Stop(), tensorboard=True)
    lines = JsonLines(tmp_path / "metrics.jsonl").read()
    scalars = event_scalars(tmp_path / "tensorboard")
    assert [(step, value) for step, tag, value in scalars if tag == "train/loss"] == [
        (line["step"], pytest.approx(line["loss"])) for line in lines
    ]
    assert {"test/recall_at_1", "final/recall_at_1"} <= {tag for _, tag, _ in scalars}


def test_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of 32 images on four devices in 5 s, 1 s of it waiting."""
    now, batches = [100.0], SimpleNamespace(waited=7.0)
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(logs, "peak_memory", lambda: 3 * 2**30)
    clock = logs.Meter(batches, 32, 20)  # type: ignore[arg-type]
    now[0], batches.waited = 105.0, 8.0
    line = clock.read(30)
    assert line == {
        "step": 30, "images_per_second": 64.0, "data_wait": 0.2,
        "peak_memory": 3 * 2**30, "step_seconds": 0.5,
    }  # fmt: skip
    text = "64 images/s  500 ms a step  waiting for data 20%  memory 3.0 GiB"
    assert logs.describe(line) == text
    assert clock.read(30).keys() == line.keys() - {"step_seconds"}


def test_the_digest_of_numbers_of_any_type() -> None:
    kinds = (jnp.float32, jnp.bfloat16, jnp.int8, bool)
    assert len({digest({"w": jnp.ones((), kind)}) for kind in kinds}) == len(kinds)


RUN = {"config": asdict(small(steps=5)), "data_hash": "x"}


def state(step: int) -> TrainState:
    rng = np.random.default_rng(step)
    return TrainState(
        jnp.asarray(step, jnp.int32),
        {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "empty": jnp.zeros((0, 4))},
        {"seen": jnp.asarray(step, jnp.int32), "neck": {}},
        {"moments": jnp.ones(100)},
    )


def test_round_trip(tmp_path: Path) -> None:
    for step in (3, 20):  # replaces the first
        model_files.write(tmp_path / "model", state(step), RUN)
    found, original = model_files.read(tmp_path / "model", state(0), RUN), state(20)
    assert int(found.step) == 20
    assert found.opt_state == ()
    both = (found.params, found.model_state), (original.params, original.model_state)
    assert jax.tree.structure(both[0]) == jax.tree.structure(both[1])
    for a, b in zip(*(jax.tree.leaves(tree) for tree in both), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def finish(directory: Path) -> None:
    """As `run.train` ends."""
    with seal.write(directory / "model", "model"):
        pass
    workdir.finish(directory, "model", identity(1))


def listed(directory: Path) -> set[str]:
    return set(seal.read(directory, "run", exact=False).files)


def test_replaced_files_of_a_finished_run(tmp_path: Path) -> None:
    """The manifest gets their digests, and keeps those of files that have been damaged."""
    for name in ("figures/a.json", "analysis/b.json", "queries.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    finish(tmp_path)
    (tmp_path / "figures/a.json").write_text("bad")
    with workdir.updated(tmp_path, "analysis/"):
        (tmp_path / "analysis/b.json").unlink()
        (tmp_path / "analysis/c.json").write_text("new")
    new, old = (hashlib.sha256(text).hexdigest() for text in (b"new", b"old"))
    assert seal.read_manifest(tmp_path).parts.keys() == {"model"}
    found = {name: each["sha256"] for name, each in seal.read_manifest(tmp_path).files.items()}
    assert found == {"analysis/c.json": new, "figures/a.json": old, "queries.npz": old}
    assert seal.file(tmp_path, "analysis/c.json").read_text() == "new"
    with pytest.raises(DataError, match=r"figures/a\.json: has changed since it was written"):
        seal.file(tmp_path, "figures/a.json")
    (tmp_path / "figures/x.json").write_text("foreign")
    with pytest.raises(DataError, match=r"figures/x\.json: is not in manifest\.json"):
        seal.file(tmp_path, "figures/x.json")
    (tmp_path / seal.MANIFEST).write_text("{")
    with (
        pytest.raises(CheckpointError, match=r"manifest\.json: is truncated or damaged"),
        workdir.updated(tmp_path, "figures/"),
    ):
        pytest.fail("nothing may be written")


def test_a_writer_that_dies_leaves_no_file_that_is_called_changed(tmp_path: Path) -> None:
    """If it is killed or fails, its files are not in the manifest until the next command."""
    (tmp_path / "analysis").mkdir()
    paths = {name: tmp_path / name for name in ("queries.npz", "analysis/a.json", "report.html")}
    for file in paths.values():
        file.write_text("old")
    finish(tmp_path)
    killed = workdir.updated(tmp_path, "analysis/")
    killed.__enter__()  # and never left
    paths["analysis/a.json"].write_text("of the killed one")
    assert listed(tmp_path) == paths.keys() - {"analysis/a.json"}
    with workdir.updated(tmp_path, "analysis/"):
        paths["analysis/a.json"].write_text("whole")
    assert listed(tmp_path) == paths.keys()
    with suppress(OSError), workdir.updated(tmp_path, "analysis/"):
        paths["analysis/a.json"].write_text("before the disk was full")
        raise OSError
    assert listed(tmp_path) == paths.keys() - {"analysis/a.json"}


def written(directory: Path, config: Config) -> None:
    facts = {"data_hash": "", "classes": 40, "images": 7, "shape": [24, 24]}
    files.write_json(directory / "config.json", {"config": asdict(config), **facts})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "step", "milestones": (1, 2), "gamma": 0.5},
        {"schedule": "step", "period": 1, "gamma": 0.5},
        {"linear_warmup": 5},
        {"select": "test", "evaluate_every": 10},
    ],
)
def test_more_steps_are_allowed_where_they_begin_alike(options: dict[str, Any], tmp_path: Path) -> None:
    """Files of the run itself are not those of others."""
    written(tmp_path, small(steps=20, **options))
    (tmp_path / "metrics.jsonl").touch()
    for steps in (20, 30):
        workdir.check_same_run(tmp_path, {"config": asdict(small(steps=steps, **options))})


def test_a_second_run_does_not_disturb_the_first(tmp_path: Path) -> None:
    with workdir.locked(tmp_path):
        with pytest.raises(CheckpointError), workdir.locked(tmp_path):
            pass
        (tmp_path / "kept").touch()
    assert (tmp_path / "kept").exists()


def test_a_lock_that_a_power_cut_has_left_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".config.json.lock").write_text("of a process that has no end")
    with workdir.locked(tmp_path):
        pass
    assert not (tmp_path / ".config.json.lock").exists()


def test_five_failed_starts_without_a_newer_checkpoint_are_the_last(tmp_path: Path) -> None:
    def fail(error: Exception) -> None:
        with workdir.locked(tmp_path):
            raise error

    def checkpoint(step: int) -> None:
        (tmp_path / "checkpoints" / "latest" / str(step)).mkdir(parents=True)
        seal.close(tmp_path / "checkpoints" / "latest" / str(step), "checkpoint")

    for newer in (10, 20):
        checkpoint(newer)
        for _ in range(5):
            with pytest.raises(OSError, match="failed"):
                fail(OSError(errno.EIO, "failed"))
    with pytest.raises(CheckpointError, match="5 starts in a row have failed without a newer checkpoint; see"):
        fail(AssertionError())
    for _ in range(6):  # the user is told at once
        with pytest.raises(ConfigError):
            fail(ConfigError())
    with workdir.locked(tmp_path):
        assert json.loads((tmp_path / "starts.json").read_text()) == {"step": 20, "count": 1}
    assert not (tmp_path / "starts.json").exists()
