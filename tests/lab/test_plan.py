"""Study files and their trials: every configuration is valid; invalid studies are explained in one
sentence."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dml_jax import config as configs
from dml_jax.config import files as config_files
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.lab import plan, search
from dml_jax.lab.definition import Row, Study, grid
from dml_jax.lab.plan import Settings

ROOT = Path(__file__).parents[2]
FILES = config_files.known_files("--study")
DIGITS = str(ROOT / "configs" / "digits_hist.py")


def settings(root: Path = Path("root"), **changed: Any) -> Settings:
    return Settings(root, **changed)


def study(*rows: Row) -> Study:
    return Study("A study", rows=rows)


@pytest.mark.parametrize("name", FILES)
def test_study_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of every variant are valid configurations with names of their own."""
    monkeypatch.chdir(ROOT)
    module = config_files.run_file("--study", name)
    for command in re.findall(
        r"^    dml-jax study --study=(\S+)", module.__doc__ or "", re.MULTILINE
    ):
        plan.load(command)
    for variant in module.VARIANTS:
        loaded, found = plan.load(f"{FILES[name]}:{variant}")
        assert loaded == f"{name.replace('/', '-')}-{variant}"
        assert found.title.endswith(variant.rpartition("-")[2])
        assert found.source
        if found.search:
            trial = search.make_trial(
                found.search, settings(), "trial-0000", search.example(found.search)
            )
            assert trial.config.train.select == "validation"
            continue
        assert len({trial.name for trial in plan.trials(found, settings())}) == len(found.rows)


def test_studies_state_the_papers_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied from the tables, independently of `configs/`."""
    monkeypatch.chdir(ROOT)

    def paper(file: str, row: str, source: str = "paper") -> dict[str, float]:
        _, found = plan.load(file)
        chosen = next(r for r in found.rows if r.name == row)
        trial = next(t for t in plan.trials(replace(found, rows=(chosen,)), settings()))
        known = configs.published(asdict(trial.config))
        return {**known.get(f"{source} (selected on test)", {}), **chosen.reported.get(source, {})}

    assert paper("mpn:embedding_size-inshop", "1024 dimensions")["recall@1"] == 0.917
    assert paper("mpn:embedding_size-cars", "64 dimensions") == {"recall@1": 0.763, "nmi": 0.681}
    assert paper("hist:sizes-cars", "embedding_dim=1024 hidden_dim=256", "reproduction") == {
        "recall@1": 0.8867
    }
    assert paper("hist:tau_lambda-cars", "tau=8 lambda_s=1.5", "reproduction") == {
        "recall@1": 0.7863
    }
    assert paper("hist:tau_lambda-cars", "tau=16 lambda_s=1", "reproduction") == {}
    assert paper("hist:backbones-sop", "ResNet-50")["recall@100"] == 0.968
    assert paper("crt:first_prototypes-cub", "prototypes=4x64")["recall@1"] == 0.7557
    assert paper("crt:prototypes-cub", "prototypes=100x100")["recall@8"] == 0.9431
    assert paper("crt:backbones-inshop", "DeiT-S, MS")["recall@1"] == 0.9247
    assert paper("diva:tasks-sop", "D + DaNCE + I") == {
        "recall@1": 0.758,
        "recall@10": 0.89,
        "nmi": 0.898,
    }


def test_grid() -> None:
    rows = grid("a.py", {"x": (1, 2), "y.z": (0.5, "b")}, {"k": True})
    assert [row.name for row in rows] == ["x=1 z=0.5", "x=1 z=b", "x=2 z=0.5", "x=2 z=b"]
    assert rows[2].overrides == {"k": True, "x": 2, "y.z": 0.5}


def test_overrides_and_seeds() -> None:
    rows = (
        Row("plain", DIGITS),
        Row(
            "changed",
            DIGITS,
            {"method.tau": 3, "evaluation.ks": (1, 5), "train.epochs": 2, "seed": 100},
        ),
    )
    made = plan.trials(study(*rows), settings(seeds=(1, 2), overrides={"method.hidden_dim": "7"}))
    assert [trial.name for trial in made] == [
        "plain-seed1",
        "changed-seed1",
        "plain-seed2",
        "changed-seed2",
    ]
    assert [trial.config.seed for trial in made] == [1, 101, 2, 102]
    changed = made[1].config
    assert (changed.method.tau, changed.evaluation.ks) == (3.0, (1, 5))
    assert (changed.train.epochs, changed.train.steps) == (2, 0)
    assert {trial.config.method.hidden_dim for trial in made} == {7}


def test_overrides_of_what_distinguishes_the_rows() -> None:
    rows = grid(DIGITS, {"method.tau": (8.0, 16.0)}, overrides={"train.steps": 60})
    made = plan.trials(Study("T", rows=rows), Settings(Path("r"), overrides={"train.steps": "30"}))
    assert [(trial.config.method.tau, trial.config.train.steps) for trial in made] == [
        (8, 30),
        (16, 30),
    ]
    only_one = (Row("a", DIGITS, {"method.tau": 3.0}), Row("b", DIGITS))
    for different, key in ((rows, "method.tau"), (only_one, "method.tau"), (rows, "seed")):
        with pytest.raises(ConfigError, match=rf"--config\.{key}: "):
            plan.trials(Study("T", rows=different), Settings(Path("r"), overrides={key: "1"}))


def test_the_authors_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is that of the configuration file where it states one."""
    monkeypatch.chdir(ROOT)
    rows = (Row("published", "configs/cub_mpn.py:large"), Row("other", "configs/digits_hist.py"))
    clean, paper = (plan.trials(study(*rows), settings(paper=paper)) for paper in (False, True))
    assert [trial.config.train.select for trial in clean] == ["last", "last"]
    assert [trial.config.train.select for trial in paper] == ["test", "test"]
    assert [trial.config.evaluation.protocol for trial in paper] == ["paper", "paper"]
    assert paper[0].config.train.reload_best_epochs == (30, 50)


def test_rows_that_need_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    rows = (
        Row("student", "configs/omniglot_student.py", {"method.teacher": "@the teacher"}),
        Row("both", members=("student", "the teacher"), weights=(1.0, 2.0)),
        Row("the teacher", "configs/omniglot_mpn.py"),
    )
    made = plan.trials(study(*rows), settings(Path("r"), seeds=(3,)))
    assert [trial.name for trial in made] == ["the-teacher-seed3", "student-seed3", "both-seed3"]
    assert made[1].config.method.teacher == "r/the-teacher-seed3"
    assert made[2].members == (Path("r/student-seed3"), Path("r/the-teacher-seed3"))


def test_invalid_rows() -> None:
    with pytest.raises(
        ConfigError, match=r"row 'a' .*method\.tua: there is no such key; did you mean tau"
    ):
        plan.trials(study(Row("a", DIGITS, {"method.tua": 3})), settings())


def test_invalid_files(tmp_path: Path) -> None:
    for text, message in (
        ("x = 1", r"has no get_study\(\)"),
        ("def get_study(): return 1 / 0", "cannot be run .ZeroDivisionError"),
    ):
        file = tmp_path / "study.py"
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            plan.load(str(file))
    with pytest.raises(
        ConfigError, match="there is no variant 'layers-cras'; did you mean layers-cars"
    ):
        plan.load("hist:layers-cras")


def test_roots_of_others(tmp_path: Path) -> None:
    """Another study, other files, or the run of another configuration: refused before anything is
    written."""
    one = study(Row("a", DIGITS))
    made = plan.trials(one, settings(tmp_path))
    for _ in range(2):
        plan.begin("mine", one, settings(tmp_path), made)
    with pytest.raises(ConfigError, match="holds another study, "):
        plan.begin("yours", one, settings(tmp_path), made)
    made[0].directory.mkdir()
    stored = {
        "config": asdict(made[0].config) | {"seed": 5},
        "data_hash": "",
        "classes": 1,
        "images": 1,
    }
    stored["shape"] = [24, 24]
    (made[0].directory / "config.json").write_text(json.dumps(stored))
    with pytest.raises(
        CheckpointError,
        match=r"belongs to a run of another configuration: seed \(5 there, 0 here\)",
    ):
        plan.begin("mine", one, settings(tmp_path), made)
    (tmp_path / "study.json").unlink()
    with pytest.raises(ConfigError, match="holds another study, "):
        plan.begin("mine", one, settings(tmp_path), made)
