"""Which runs are seeds of one row, and which are of the same test images."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dml_jax.errors import ConfigError
from dml_jax.studies import outcomes, tables
from tests.studies.runs import hits, other_names, write_run
from tests.test_configs import resolved


def config(seed: int = 0, **method: Any) -> dict[str, Any]:
    values = asdict(resolved("digits_hist"))
    return values | {"seed": seed, "method": values["method"] | method}


def rows(*directories: Path) -> list[str]:
    return [run.row for run in tables.of_runs(directories, "recall@1").runs]


def test_other_images_with_names_of_the_same_length(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_run(tmp_path / name, hits(0.5), config=config())
    other_names(tmp_path / "b")
    images = {name: outcomes.read_run(tmp_path / name).images for name in ("a", "b", "c")}
    assert images["a"] == images["c"] != images["b"]


def test_without_embeddings_the_images_are_unknown(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, hits(0.5), config=config())
        (tmp_path / name / "embeddings" / "test" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="other test images"):
        outcomes.comparable([outcomes.read_run(tmp_path / name) for name in ("a", "b")])
    for name in ("a", "b"):
        (tmp_path / name / "config.json").write_text(json.dumps({"config": config(), "data_hash": "x"}))
    outcomes.comparable([outcomes.read_run(tmp_path / name) for name in ("a", "b")])


def test_other_data_is_not_another_seed(tmp_path: Path) -> None:
    """Even if the images have the same names."""
    for seed, digest in enumerate(("x", "x", "y")):
        run = tmp_path / f"{digest}-{seed}"
        write_run(run, hits(0.5), config=config(seed))
        (run / "config.json").write_text(json.dumps({"config": config(seed), "data_hash": digest}))
    assert rows(tmp_path / "x-0", tmp_path / "x-1", tmp_path / "y-2") == ["x", "x", "y"]


def test_the_same_seed_twice(tmp_path: Path) -> None:
    write_run(tmp_path / "a", hits(0.5), config=config(1))
    write_run(tmp_path / "b", hits(0.5), config=config(1))
    with pytest.raises(ConfigError, match=f"{tmp_path / 'a'} and {tmp_path / 'b'}: hold the same configuration with"):
        rows(tmp_path / "a", tmp_path / "b")
    write_run(tmp_path / "c", hits(0.5), config=config(1), protocol="paper protocol")
    assert rows(tmp_path / "a", tmp_path / "c") == ["a", "a"]


def test_equal_names_of_three_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [Path("x/a-0"), Path("y/a-0"), Path("a-0")]
    for tau, path in enumerate(paths, start=1):
        write_run(path, hits(0.5), config=config(tau=float(tau)))
    assert rows(*paths) == ["a", "a-0", "a-0 (2)"]
