"""Logs: an incomplete last line is left by a kill; any other damage is reported, and a full disk names the file."""

import resource
import struct
from pathlib import Path

import pytest

from dml_jax import files, manifest, run
from dml_jax.console import Console
from dml_jax.errors import CheckpointError
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.records.jsonl import JsonLines
from tests.train.experiments import small
from tests.train.test_loop import StopAt

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


@pytest.mark.parametrize("damage", ['{"step": 2, "lo', "", "3", '{"loss": 1}', '{"step": "2"}', "\0\0\0", "[" * 5000])
def test_another_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    text = "\n".join([WHOLE[0], damage, WHOLE[2]]) + "\n"
    damaged = lines(tmp_path, text)
    for act in (damaged.read, lambda: damaged.truncate(3)):
        with pytest.raises(
            CheckpointError, match=r"metrics\.jsonl: is truncated or damaged \(.*\); restore it from a copy"
        ):
            act()
    assert (tmp_path / "metrics.jsonl").read_text() == text


def test_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        JsonLines(Path("/dev/full")).write({"step": 1})


def test_a_full_disk_names_the_file_that_is_replaced(tmp_path: Path) -> None:
    """The temporary file beside it is removed."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            files.write_json(tmp_path / "results.json", {"text": "long" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "results.json")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_has_changed_since_the_run_finished(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.write({"step": 1, "loss": 2.5})
    manifest.write(tmp_path, {})
    assert log.read() == [{"step": 1, "loss": 2.5}]
    log.path.write_text('{"step": 1, "loss": 1.5}\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: has changed since it was written"):
        log.read()


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
    assert {"train/grad_norm", "test/recall_at_1", "final/recall_at_1"} <= {tag for _, tag, _ in scalars}
