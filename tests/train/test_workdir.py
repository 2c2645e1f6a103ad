"""Work directories: one configuration, one run at a time, and foreign files are never removed."""

import errno
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dml_jax import files, seal
from dml_jax.config import Config
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.train.records import workdir
from tests.train.experiments import small

CONFIG = small(steps=20)


def written(directory: Path, config: Config = CONFIG) -> Path:
    facts = {
        "config": asdict(config),
        "data_hash": "",
        "classes": 40,
        "images": 7,
        "shape": [24, 24],
    }
    files.write_json(directory / "config.json", facts)
    return directory / "config.json"


@pytest.mark.parametrize("name", ["manifest.json", "results.json", "report.html", "metrics.jsonl"])
def test_files_of_others_are_not_replaced(name: str, tmp_path: Path) -> None:
    """E.g. of exported embeddings, which are of no use without their manifest."""
    (tmp_path / name).write_text("mine")
    problem = f"holds {name}, but no run; give another --workdir"
    with pytest.raises(CheckpointError, match=problem):
        workdir.check_same_run(tmp_path, {"config": asdict(CONFIG)})
    written(tmp_path)
    (tmp_path / name).unlink()
    workdir.check_same_run(tmp_path, {"config": asdict(CONFIG)})


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, False),
        ({"schedule": "step", "milestones": (1, 2), "gamma": 0.5}, False),
        ({"schedule": "step", "period": 1, "gamma": 0.5}, False),
        ({"linear_warmup": 5}, False),
        ({"select": "test", "evaluate_every": 10}, False),
        ({"schedule": "cosine"}, True),
        ({"select": "test", "evaluate_every": 8}, True),
        ({"select": "test"}, True),
    ],
)
def test_more_steps_are_allowed_where_they_begin_alike(
    options: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    written(tmp_path, small(steps=20, **options))
    workdir.check_same_run(tmp_path, {"config": asdict(small(steps=20, **options))})
    with pytest.raises(CheckpointError, match=r"train.steps \(20 there, 10 here\)"):
        workdir.check_same_run(tmp_path, {"config": asdict(small(steps=10, **options))})
    if not refused:
        workdir.check_same_run(tmp_path, {"config": asdict(small(steps=30, **options))})
        return
    with pytest.raises(
        CheckpointError,
        match=r"another configuration: train\.steps \(20 there, 30 here\); give another",
    ):
        workdir.check_same_run(tmp_path, {"config": asdict(small(steps=30, **options))})


def test_another_method_is_one_difference(tmp_path: Path) -> None:
    written(tmp_path)
    other = replace(CONFIG, seed=7, method=replace(CONFIG.method, name="another"))
    with pytest.raises(
        CheckpointError, match=r"method.name \('baseline' there, 'another' here\); give another"
    ):
        workdir.check_same_run(tmp_path, {"config": asdict(other)})


@pytest.mark.parametrize("key", ["steps", "groups"])
def test_a_key_missing_in_config_json_is_named(key: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    facts = json.loads(path.read_text())
    del facts["config"]["train"][key]
    path.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=f"train.{key}"):
        workdir.check_same_run(tmp_path, {"config": asdict(CONFIG)})


def test_a_second_run_is_refused_and_does_not_disturb_the_first(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with workdir.locked(directory):
        with (
            pytest.raises(CheckpointError, match="another run is using it"),
            workdir.locked(directory),
        ):
            pass
        (directory / "kept").touch()
    assert (directory / "kept").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("config", value) for value in ([], None)),
        ("data_hash", 5),
        *(("classes", value) for value in ("9", 0, 10**20)),
        ("images", -1),
        *(("shape", value) for value in ([], [8], [8, "8"], [0, 8], [8, 8, 8])),
        *(("shape", value) for value in (["int32", "8"], ["object", 8], ["int31", 8])),
    ],
)
def test_wrong_entries_of_config_json_are_named(key: str, value: object, tmp_path: Path) -> None:
    path = written(tmp_path)
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {key: value}))
    with pytest.raises(
        CheckpointError, match=rf"config\.json: is truncated or damaged \({key}.*\); restore it"
    ):
        workdir.read_config(tmp_path)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc, which has no new directories")
def test_a_directory_that_cannot_be_created() -> None:
    with pytest.raises(CheckpointError, match="--workdir=/proc/nope: cannot be created"):
        workdir.locked(Path("/proc/nope")).__enter__()


def test_the_lock_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), workdir.locked(tmp_path / "run"):
        pass
    assert not (tmp_path / "precious").exists()


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
    with pytest.raises(
        CheckpointError, match="5 starts in a row have failed without a newer checkpoint; see"
    ):
        fail(AssertionError())
    for _ in range(6):  # the user is told at once
        with pytest.raises(ConfigError):
            fail(ConfigError())
    with workdir.locked(tmp_path):
        assert json.loads((tmp_path / "starts.json").read_text()) == {"step": 20, "count": 1}
    assert not (tmp_path / "starts.json").exists()
