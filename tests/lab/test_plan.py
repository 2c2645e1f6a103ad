"""Study files and their trials: every configuration is valid; invalid studies are explained in one sentence."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dml_jax.config import files as config_files
from dml_jax.errors import CheckpointError, ConfigError, DataError
from dml_jax.lab import plan
from dml_jax.lab.definition import Row, Study, grid
from dml_jax.lab.plan import Settings

ROOT = Path(__file__).parents[2]
FILES = config_files.known_files("--study")
DIGITS = str(ROOT / "configs" / "digits_baseline.py:proxy_anchor")
ALPHA = "method.proxy_anchor.alpha"


def settings(root: Path = Path("root"), **changed: Any) -> Settings:
    return Settings(root, **changed)


def study(*rows: Row) -> Study:
    return Study("A study", rows=rows)


@pytest.mark.parametrize("name", FILES)
def test_study_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of every variant are valid configurations with names of their own."""
    monkeypatch.chdir(ROOT)
    module = config_files.run_file("--study", name)
    for command in re.findall(r"^    dml-jax study --study=(\S+)", module.__doc__ or "", re.MULTILINE):
        plan.load_study(command)
    for variant in module.VARIANTS:
        loaded, found = plan.load_study(f"{FILES[name]}:{variant}")
        assert loaded == f"{name.replace('/', '-')}-{variant}"
        assert found.title.endswith(variant.rpartition("-")[2])
        assert found.source
        assert len(plan.trials(found, settings())) == len(found.rows)


def test_grid() -> None:
    rows = grid("a.py", {"x": (1, 2), "y.z": (0.5, "b")}, {"k": True})
    assert [row.name for row in rows] == ["x=1 z=0.5", "x=1 z=b", "x=2 z=0.5", "x=2 z=b"]
    assert rows[2].overrides == {"k": True, "x": 2, "y.z": 0.5}


def test_overrides_and_seeds() -> None:
    rows = (
        Row("plain", DIGITS),
        Row("changed", DIGITS, {ALPHA: 3, "evaluation.ks": (1, 5), "train.epochs": 2, "seed": 100}),
    )
    made = plan.trials(study(*rows), settings(seeds=(1, 2), overrides={"method.embedding_dim": "7"}))
    names = "plain-seed1 changed-seed1 plain-seed2 changed-seed2"
    assert [trial.name for trial in made] == names.split()
    assert [trial.config.seed for trial in made] == [1, 101, 2, 102]
    changed = made[1].config
    assert (changed.method.proxy_anchor.alpha, changed.evaluation.ks) == (3.0, (1, 5))
    assert (changed.train.epochs, changed.train.steps) == (2, 0)
    assert {trial.config.method.embedding_dim for trial in made} == {7}


def test_overrides_of_what_distinguishes_the_rows() -> None:
    rows = grid(DIGITS, {ALPHA: (8.0, 16.0)}, overrides={"train.steps": 60})
    made = plan.trials(Study("T", rows=rows), Settings(Path("r"), overrides={"train.steps": "30"}))
    assert [(trial.config.method.proxy_anchor.alpha, trial.config.train.steps) for trial in made] == [(8, 30), (16, 30)]
    only_one = (Row("a", DIGITS, {ALPHA: 3.0}), Row("b", DIGITS))
    for different, key in ((rows, ALPHA), (only_one, ALPHA), (rows, "seed")):
        with pytest.raises(ConfigError, match=rf"--config\.{key}: "):
            plan.trials(Study("T", rows=different), Settings(Path("r"), overrides={key: "1"}))


def test_the_authors_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is that of the configuration file where it states one."""
    monkeypatch.chdir(ROOT)
    rows = (Row("published", "configs/cub_baseline.py:margin"), Row("other", DIGITS))
    clean, paper = (plan.trials(study(*rows), settings(paper=paper)) for paper in (False, True))
    assert [trial.config.train.select for trial in clean] == ["last", "last"]
    assert [trial.config.train.select for trial in paper] == ["test", "test"]
    assert [trial.config.evaluation.protocol for trial in paper] == ["paper", "paper"]
    assert [trial.config.data.exif_rotation for trial in paper] == [False, True]


def test_rows_that_need_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    rows = (
        Row("second", DIGITS, {"init_from": "@the first"}),
        Row("both", members=("second", "the first"), weights=(1.0, 2.0)),
        Row("the first", DIGITS),
    )
    made = plan.trials(study(*rows), settings(Path("r"), seeds=(3,)))
    assert [trial.name for trial in made] == ["the-first-seed3", "second-seed3", "both-seed3"]
    assert made[1].config.init_from == "r/the-first-seed3"
    assert made[2].members == (Path("r/second-seed3"), Path("r/the-first-seed3"))


def test_roots_of_others(tmp_path: Path) -> None:
    """Another study, other files, or the run of another configuration: refused before anything is written."""
    one = study(Row("a", DIGITS))
    made = plan.trials(one, settings(tmp_path))
    for _ in range(2):
        plan.create_study("mine", one, settings(tmp_path), made)
    with pytest.raises(ConfigError, match="contains another study or other files"):
        plan.create_study("yours", one, settings(tmp_path), made)
    made[0].directory.mkdir()
    stored = {"data_hash": "", "classes": 1, "images": 1, "shape": [24, 24]}
    stored["config"] = asdict(made[0].config) | {"seed": 5}
    (made[0].directory / "config.json").write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match=r"different configuration: seed \(5 there, 0 here\)"):
        plan.create_study("mine", one, settings(tmp_path), made)
    facts = plan.read_facts(tmp_path) or {}
    for broken in (facts | {"rows": [{"name": "a"}]}, {"study": "mine", "title": "x"}):
        (tmp_path / "study.json").write_text(json.dumps(broken))
        with pytest.raises(DataError, match=r"study\.json: .*field required.* another --root"):
            plan.read_facts(tmp_path)
    (tmp_path / "study.json").unlink()
    with pytest.raises(ConfigError, match="contains another study or other files"):
        plan.create_study("mine", one, settings(tmp_path), made)
