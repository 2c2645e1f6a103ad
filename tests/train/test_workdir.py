"""Work directories: one configuration, one run at a time, and foreign files are never removed."""

import errno
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dml_jax import files, seal
from dml_jax.config import Config
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.train.records import workdir
from tests.train.experiments import small


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
