"""Work directories: one configuration, one run at a time, and foreign files are never removed."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dml_jax import files
from dml_jax.errors import CheckpointError
from dml_jax.train import workdir
from tests.train.experiments import small

CONFIG = small(steps=20)


def written(directory: Path) -> Path:
    facts = {"config": asdict(CONFIG), "data_hash": "", "classes": 40, "images": 7, "shape": [24, 24]}
    files.write_json(directory / "config.json", facts)
    return directory / "config.json"


def longer(steps: int) -> object:
    return replace(CONFIG, train=replace(CONFIG.train, steps=steps))


def test_more_steps_are_allowed_and_fewer_are_not(tmp_path: Path) -> None:
    written(tmp_path)
    workdir.check_same_run(tmp_path, longer(30))
    with pytest.raises(CheckpointError, match=r"train.steps \(20 there, 10 here\)"):
        workdir.check_same_run(tmp_path, longer(10))


def test_another_method_is_one_difference(tmp_path: Path) -> None:
    written(tmp_path)
    other = replace(CONFIG, seed=7, method=replace(CONFIG.method, name="mpn"))
    with pytest.raises(CheckpointError, match=r"method.name \('hist' there, 'mpn' here\) and 1 more; give another"):
        workdir.check_same_run(tmp_path, other)


@pytest.mark.parametrize(
    "text",
    ["[]", "3", '{"config": {}}', "{", b"\xff\xfe", '{"config": [], "data_hash": "", "classes": 1, "shape": []}'],
)
def test_config_json_edited_by_hand(text: str | bytes, tmp_path: Path) -> None:
    written(tmp_path).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CheckpointError, match=r"config.json"):
        workdir.check_same_run(tmp_path, CONFIG)


@pytest.mark.parametrize("key", ["steps", "groups"])
def test_a_key_missing_in_config_json_is_named(key: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    facts = json.loads(path.read_text())
    del facts["config"]["train"][key]
    path.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=f"train.{key}"):
        workdir.check_same_run(tmp_path, CONFIG)


def test_a_second_run_is_refused_and_does_not_disturb_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    with workdir.locked(directory):
        # As if both had looked before either created it.
        monkeypatch.setattr(Path, "exists", lambda self: False)
        with pytest.raises(CheckpointError, match="another run is using it"), workdir.locked(directory):
            pass
        monkeypatch.undo()
        assert (directory / ".lock").exists()
        (directory / "kept").touch()
    assert (directory / "kept").exists()


def test_an_unused_directory_is_removed(tmp_path: Path) -> None:
    with workdir.locked(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
